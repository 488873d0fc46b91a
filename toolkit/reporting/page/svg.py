"""An SVG file as matplotlib writes it in, an ``<svg>`` element that may stand in a page out: light or dark, inert."""

import re
from xml.etree import ElementTree

SVG = "http://www.w3.org/2000/svg"
INK, PAPER, GRID, BAND = "currentColor", "var(--surface)", "var(--figure-grid)", "var(--figure-band)"
"""What black, white, light grey lines and light grey areas become: colours that change with the page."""

_LEFT_OUT = frozenset({"metadata", "style", "script", "foreignObject", "a", "animate", "set", "handler", "listener"})
_COLOUR = re.compile(r"(fill: *)?#([0-9a-fA-F]{6})\b")
_REFERENCE = re.compile(r"url\(\s*['\"]?#([^'\")]+)['\"]?\s*\)")
_FAMILY = re.compile(r"font-family:[^;]*")
_FONT = re.compile(r"font:([^;]*?)(\d+(?:\.\d+)?px)[^;]*")


def inline_svg(svg: bytes, name: str, alt: str) -> str:
    """The figure as one element: its ids begin with ``name``, ``alt`` is its label, nothing in it runs or loads.

    The white behind figure and axes goes, other white becomes the page's, black and dark greys the text's colour.
    ValueError for bytes that are no SVG.
    """
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"figure {name!r} is not an SVG file: {error}") from None
    if _local(root.tag) != "svg":
        raise ValueError(f"figure {name!r} is not an SVG file: its first element is <{_local(root.tag)}>")
    _clean(root, re.sub(r"[^A-Za-z0-9_-]", "-", name) + "-")
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    root.set("style", "fill: currentColor; stroke-linejoin: round; stroke-linecap: butt")
    ElementTree.register_namespace("", SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    return re.sub(r">\s+<", "><", re.sub(r"[ \t]*\n", " ", text)).strip()


def width_of(svg: bytes) -> float:
    """The width of an SVG file in the pixels of a page, from its view box (points); 0 where it has none."""
    box = re.search(rb"viewBox=\"[\d.-]+ [\d.-]+ ([\d.]+) ", svg)
    return float(box.group(1)) * 4 / 3 if box else 0.0


def _clean(element: ElementTree.Element, prefix: str, is_background: bool = False) -> None:
    element.tag = f"{{{SVG}}}{_local(element.tag)}"
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        local = _local(key)
        if local.lower().startswith("on"):
            continue
        if local == "href":
            if value.startswith("#"):
                element.set("href", f"#{prefix}{value[1:]}")
            elif value.startswith("data:image/png;base64,"):
                element.set("href", value)
        elif local == "id":
            element.set("id", prefix + value)
        elif not key.startswith("{"):
            element.set(local, _restyle(value, prefix, is_background))
    for child in list(element):
        if not isinstance(child.tag, str) or _local(child.tag) in _LEFT_OUT:
            element.remove(child)
        else:
            # matplotlib calls the first patch of a figure patch_1 and the first of its axes patch_2, _7, and so on.
            parent = element.get("id", "")
            is_first = child is next(iter(element), None) and child.get("id", "").startswith("patch_")
            is_behind = is_first and (parent.startswith(prefix + "axes_") or parent == prefix + "figure_1")
            _clean(child, prefix, is_background or is_behind)


def _restyle(value: str, prefix: str, is_background: bool) -> str:
    """A style or presentation attribute with local references renamed and colours that suit light and dark."""
    value = _REFERENCE.sub(lambda match: f"url(#{prefix}{match.group(1)})", value)
    if "url(" in value.replace("url(#", ""):
        return "none"
    value = _FONT.sub(r"font:\1\2 var(--sans)", value)
    value = _FAMILY.sub("font-family: var(--sans)", value)
    return _COLOUR.sub(lambda match: (match[1] or "") + _colour(match[2], is_background, bool(match[1])), value)


def _colour(digits: str, is_background: bool, is_area: bool) -> str:
    red, green, blue = (int(digits[i : i + 2], 16) for i in (0, 2, 4))
    if max(red, green, blue) - min(red, green, blue) > 6:
        return f"#{digits}"
    if red > 250:
        return "none" if is_background else PAPER
    if red < 112:
        return INK
    if red > 184:
        return BAND if is_area else GRID
    return f"#{digits}"


def _local(name: str) -> str:
    return name.rpartition("}")[2]
