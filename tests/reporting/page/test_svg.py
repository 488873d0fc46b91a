"""An inlined figure keeps what it shows, changes colours with the page, and can neither run nor load anything."""

from xml.etree import ElementTree

import pytest

from tests.reporting.page.pages import INJECTION, make_svg
from toolkit.reporting.page.svg import inline_svg, width_of

pytestmark = pytest.mark.usefixtures("drawn")

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 300 100">{}</svg>'
)


def inline(body: str, name: str = "f") -> str:
    return inline_svg(SVG.format(body).encode(), name, "alt")


def test_ids_and_references_get_the_name_of_the_figure():
    text = inline('<path id="m1"/><use xlink:href="#m1"/><g clip-path="url(#p1)" id="p1"/>', "scores over/epochs")
    root = ElementTree.fromstring(text)
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert ids == {"scores-over-epochs-m1", "scores-over-epochs-p1"}
    assert 'href="#scores-over-epochs-m1"' in text
    assert "url(#scores-over-epochs-p1)" in text


def test_two_matplotlib_figures_share_no_id():
    one, other = (ElementTree.fromstring(inline_svg(make_svg(), name, "")) for name in "ab")
    ids = [{element.get("id") for element in root.iter()} - {None} for root in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)"/>',
        '<a href="javascript:alert(1)"><text>x</text></a>',
        '<image xlink:href="http://example.org/x.png"/>',
        '<use xlink:href="http://example.org/x.svg#a"/>',
        "<foreignObject><body onload='alert(1)'/></foreignObject>",
        "<style>*{display:none}</style>",
        '<rect style="fill: url(http://example.org/x)"/>',
        '<animate attributeName="href" values="javascript:alert(1)"/>',
    ],
)
def test_nothing_in_it_runs_or_loads(hostile: str):
    text = inline(hostile).lower().replace("http://www.w3.org/2000/svg", "")
    for trace in ("script", "onload", "http:", "<a ", "foreignobject", "<style", "animate"):
        assert trace not in text


def test_png_inside_stays():
    assert 'href="data:image/png;base64,AAAA"' in inline('<image xlink:href="data:image/png;base64,AAAA"/>')


def test_texts_stay_texts():
    text = inline_svg(make_svg(), "f", f'"{INJECTION}')
    assert "<script" not in text
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == f'"{INJECTION}'
    assert root.get("role") == "img"
    assert any(INJECTION in "".join(element.itertext()) for element in root.iter())


def test_colours_follow_the_page():
    text = inline_svg(make_svg(), "f", "")
    assert "#000000" not in text
    assert "#ffffff" not in text
    assert "currentColor" in text
    root = ElementTree.fromstring(text)
    behind = next(element for element in root.iter() if element.get("id") == "f-patch_1")
    assert "none" in behind[0].get("style", "")
    assert "#1f77b4" in text  # colours that mean something stay
    assert "DejaVu" not in text


def test_greys_are_told_apart():
    text = inline('<path style="fill: #dddddd; stroke: #dddddd"/><path style="fill: #808080; stroke: #333333"/>')
    assert 'style="fill: var(--figure-band); stroke: var(--figure-grid)"' in text
    assert 'style="fill: #808080; stroke: currentColor"' in text


def test_what_is_no_svg_is_refused():
    for svg in (b"not xml", b"<html/>", b"<!DOCTYPE x [<!ENTITY a 'b'>"):
        with pytest.raises(ValueError, match="figure 'f' is not an SVG file"):
            inline_svg(svg, "f", "")


def test_width_in_pixels():
    assert width_of(SVG.encode()) == pytest.approx(400)
    assert width_of(b"<svg/>") == 0
