"""Which figures a group has, and that what is exactly 0 is never drawn on a logarithmic axis."""

import pandas as pd
import pytest

from toolkit.analysis.comparison.arms import arrange
from toolkit.reporting.comparison import figures
from toolkit.reporting.comparison.drift_topics import drift_lead
from toolkit.reporting.comparison.tables import collect
from toolkit.reporting.panels import error_bars, label_of


def tables_of(*runs):
    (group,) = arrange(runs)
    return collect(group)


def axes_of(figure):
    """Every logarithmic axis and its values, then every strip and its texts."""
    logarithmic = [axes for axes in figure.axes if "log" in (axes.get_xscale(), axes.get_yscale())]
    strips = [axes for axes in figure.axes if axes not in logarithmic and axes.get_visible()]
    return logarithmic, strips


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def test_frozen_parameters_are_in_the_strip_and_named_bit_identical(read_run):
    figure = figures.drift_over_epochs(tables_of(read_run("none"), read_run("backbone")))
    logarithmic, strips = axes_of(figure)
    assert len(logarithmic) == len(strips) == 5
    for axes in logarithmic:
        assert all((line.get_ydata() > 0).all() for line in axes.lines if len(line.get_xdata()) == 3)
        assert axes.get_ylim() == logarithmic[0].get_ylim()
    assert {text for axes in strips for text in texts_of(axes)} == {"exactly 0: frozen, bit-identical"}


def test_zero_without_proof_is_only_zero(read_run):
    figure = figures.drift_over_epochs(tables_of(read_run("backbone", facts={"frozen": None})))
    assert {text for axes in axes_of(figure)[1] for text in texts_of(axes)} == {"exactly 0"}


def test_a_parameter_that_was_0_is_exactly_0_when_frozen_and_undefined_when_trained(read_run):
    runs = [read_run(regime, zero=("LayerNorm.bias",)) for regime in ("none", "embeddings")]
    last, strip = figures.drift_over_epochs(tables_of(*runs)).axes[-2:]
    assert texts_of(last) == ["undefined for 1 of 2 arms:\nit was 0 before"]
    assert texts_of(strip) == ["exactly 0: frozen, bit-identical"]
    *_, alone = figures.drift_over_epochs(tables_of(runs[0])).axes
    assert texts_of(alone) == ["undefined:\nit was 0 before"]


@pytest.mark.parametrize("zero", [(), ("LayerNorm.bias",)])
def test_the_yardstick_of_a_bias_is_1_only_where_it_was_not_0(read_run, zero):
    lead = drift_lead([tables_of(read_run("none", zero=zero))])
    assert ("which is relative 1" in lead) == (not zero)


def test_nothing_frozen_means_no_strip(read_run):
    logarithmic, strips = axes_of(figures.drift_over_epochs(tables_of(read_run("none"))))
    assert (len(logarithmic), len(strips)) == (5, 0)


def test_an_absent_parameter_says_so(read_run):
    figure = figures.drift_over_epochs(tables_of(read_run("none", lacking=("token_type_embeddings",))))
    notes = {axes.get_title(): texts_of(axes) for axes in figure.axes}
    assert notes["token_type_embeddings"] == ["not applicable:\nthis model has none"]
    assert notes["word_embeddings"] == []


def test_what_did_not_move_has_no_figure_of_rows(read_run):
    tables = tables_of(read_run("backbone"))
    assert figures.word_drift_by_exposure(tables) is None
    assert figures.position_drift(tables) is None
    assert set(figures.draw(tables)) == {"scores_over_epochs", "drift_over_epochs"}


def test_a_model_without_positions(read_run):
    lacking = ("position_embeddings", "token_type_embeddings")
    tables = tables_of(read_run("none", lacking=lacking), read_run("backbone", lacking=lacking))
    assert figures.position_drift(tables) is None
    assert figures.word_drift_by_exposure(tables) is not None


def test_positions_end_at_the_longest_text_and_start_after_the_offset(read_run):
    tables = tables_of(read_run("none", facts={"position_offset": 2}))
    assert tables.positions["position"].min() == 0
    assert set(tables.positions["longest_length"]) == {10}
    (ends,) = {line.get_xdata()[0] for axes in figures.position_drift(tables).axes for line in axes.lines[-1:]}
    assert ends == 9.5


def test_shares_of_exact_zeros_are_printed(read_run):
    figure = figures.word_drift_by_exposure(tables_of(read_run("none")))
    (strip,) = axes_of(figure)[1]
    assert texts_of(strip) == ["0", "0", "0", "6.7", "0", "0", "100"]  # from the lowest stratum up


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_seeds_have_bars(read_run, num_seeds):
    figure = figures.scores_over_epochs(tables_of(*(read_run("none", seed) for seed in range(num_seeds))))
    assert bool(figure.axes[0].collections) == (num_seeds > 1)
    assert [axes.get_title() for axes in figure.axes] == ["validation", "ood"]


def test_names_are_no_formulas(read_run, tmp_path):
    from matplotlib.figure import Figure

    label = label_of(arrange([read_run("none")])[0].arms[0], 46)
    assert label == "none (full fine-tuning)"
    figure = Figure()
    figure.suptitle(figures.plain("cost $5 to $6 \\frac"))
    figure.savefig(tmp_path / "title.svg")


def test_bars_of_equal_values_survive_the_rounding_of_their_mean() -> None:
    value = 0.8196
    table = pd.DataFrame({"epoch": 0.0, "run": [f"r{i}" for i in range(3)], "score": [value] * 3})
    values = table.groupby("epoch")["score"].agg(["mean", "min", "max"]).assign(mean=value - 1e-16)
    assert values["mean"].item() < value  # as pandas' mean can be
    for bars in error_bars(values):
        assert (bars >= 0).all()


def test_arms_of_very_different_length_share_their_own_time(read_run):
    short, long = read_run("none"), read_run("backbone")
    tables = tables_of(short, long)
    assert figures.scores_over_epochs(tables).axes[0].get_xlabel() == "epoch"
    is_long = tables.scores["run"] == long.path.name
    tables.scores.loc[is_long, "epoch"] *= 10
    tables.drift.loc[tables.drift["run"] == long.path.name, "epoch"] *= 10
    for figure in (figures.scores_over_epochs(tables), figures.drift_over_epochs(tables)):
        labels = {axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()}
        assert labels == {"of the arm's epochs (%)"}
        drawn = [line.get_xdata() for axes in figure.axes for line in axes.lines if len(line.get_xdata()) > 2]
        assert max(max(x) for x in drawn) == 100
        assert {max(x) for x in drawn} == {100}  # every arm ends at the right
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert [name.replace("\u00a0", " ").split("[")[-1] for name in names[:2]] == ["3 epochs]", "30 epochs]"]
