"""Question: how much faster is a run than transformers.Trainer, how near to the machine's limit, what do records cost?

Side by side on this machine, each measurement in a process of its own, the sides in turn, ``--repeats`` times; medians.
Three times of each: an epoch in a new process (cold), the last epoch (warm), and all from the model's loading to the
last score (whole, without imports). The peers, BertForSequenceClassification in a Trainer: as it comes
(plain: fp32, random batches); tuned by hand (bf16, batches grouped by length, fused AdamW, on a GPU four workers);
tuned+ (lengths of multiples of 8, no cuDNN attention); compiled (tuned+, torch.compile). Bare is a loop of nothing but
the step. Without a GPU the model is MiniLM, on one BERT-base from its config with random weights.

    python experiments/benchmarks/training.py --data ../shared/data/sst2
    python experiments/benchmarks/training.py --data ../shared/data/sst2 --only records --repeats 5

Without --data the built-in task polarity stands in; experiments/data.sha256 has the source, licence and sha256 of
SST-2. --out writes the ratios as JSON (of a GPU also what was measured), after each measurement, and leaves those in
the file that were not measured. --check FILE fails when a ratio is worse than four fifths of the file's: ratios to the
peer, never seconds, since machines differ.
"""

import json
import multiprocessing
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import tyro
from training_measures import run

SLACK, STRICT = 0.8, 0.99
"""Of a committed ratio: below this --check fails; the second for what must not cost anything, which is near 1."""
MUST_BE_FREE = ("records", "callback", "snapshots")

Figures = dict[str, Any]
Results = dict[str, dict[str, list[Figures]]]
"""Row and side to what each repeat measured."""
ROWS = {
    "full, short": ("none", "short"),
    "full, long": ("none", "long"),
    "feature extraction, long": ("backbone", "long"),
    "embeddings frozen, short": ("embeddings", "short"),
    "feature extraction, more": ("backbone", "more"),
}
"""What is frozen, and the data set; a machine takes the rows of whose data it has a size."""
SIZES = {
    "cuda": {"short": 10_000, "long": 4000, "pairs": 6720},
    "cpu": {"short": 2000, "more": 20_000, "pairs": 6720},
    "tiny": {"short": 400, "long": 200, "pairs": 640},
}
"""Training rows; those of pairs are 210 steps, of which a Trainer's first ten are left out."""
COLUMNS = ("cold", "warm", "whole")
BARE, OURS = "bare", "ours"
Peer = Literal["tuned+", "plain", "tuned", "bare", "compiled"]
Kind = Literal["training", "features", "records", "callback", "start", "gloo"]
PEERS: dict[str, tuple[Peer, ...]] = {"cpu": ("tuned",), "cuda": get_args(Peer)}
"""The first is measured beside ours, the others when all rows have these two."""
KINDS: dict[str, tuple[Kind, ...]] = {"cpu": get_args(Kind), "cuda": get_args(Kind)[:4]}
LEAST_SECONDS, MOST_SHARE = 12.0, 1 / 3
"""Left of --budget, or nothing more is begun; and what one measurement may take of it: one that hangs ends alone."""


def measure(context: Any, name: str, limit: float | None, **arguments: Any) -> Figures | None:
    """One measurement in a process of its own; None, and why on the screen, where it fails or takes too long."""
    answer, sent = context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile("r") as log:
        process = context.Process(target=run, args=(sent, log.name, name, arguments))
        process.start()
        sent.close()
        is_in_time = answer.poll(limit)
        try:
            figures: Figures | None = answer.recv() if is_in_time else None
        except EOFError:
            figures = None
        if figures is None:
            process.kill()
            print(f"  {name} {arguments}: {log.read()[-2000:] if is_in_time else 'out of time'}", flush=True)
        process.join()
    return figures


def plan(
    facts: Figures,
    kind: str,
    *,
    max_length: int,
    epochs: int | None,
    repeats: int,
    pairs: int,
    only: tuple[Kind, ...],
    peers: tuple[Peer, ...],
) -> list[tuple[str, str, str, Figures]]:
    """Row, side, and what `measure` takes of each measurement, the most important first.

    ``facts`` are those of `prepare`; ``kind`` is cuda for a GPU's measurements, else cpu; the others as in `main`.
    """
    rows = {title: row for title, row in ROWS.items() if row[1] in facts["operations"]}
    rows = {t: row for t, row in rows.items() if ("features" if row[0] == "backbone" else "training") in only}
    shared, tuned = {"model": facts["model"], "max_length": max_length}, PEERS[kind][0]

    def cell(title: str, side: str) -> tuple[str, str, str, Figures]:
        freeze, data = rows[title]
        num_epochs = epochs or (3 if kind == "cuda" or freeze == "backbone" else 2)
        of_peer = {} if side in (OURS, BARE) else {"kind": side}
        arguments = {"data": f"{facts['folder']}/{data}", "freeze": freeze, "epochs": num_epochs, **of_peer}
        return title, side, "trainer" if of_peer else side, shared | arguments

    first = [title for title in rows if kind == "cpu" or rows[title][0] != "embeddings"]
    # In turn: the neighbours of a CPU come and go.
    early = [(title, side) for title in first for side in [OURS, peers[0]] * repeats]
    early += [(title, side) for title in first[:1] for side in peers[1:2] * repeats]
    late = [(title, side) for side in (OURS, *peers) for title in rows if (title, side) not in early]
    late = [(title, side) for title, side in late if side != BARE or rows[title][0] != "backbone"]
    of_pairs = {**shared, "data": f"{facts['folder']}/pairs", "freeze": "none", "pairs": pairs}
    beside = [("records", OURS, of_pairs), ("callback", tuned, of_pairs | {"kind": tuned})]
    last: list[tuple[str, str, Figures]] = [("start", OURS, {})] * repeats
    last += [("gloo", freeze, {"freeze": freeze}) for freeze in ("none", "embeddings")]
    others = [[(name, side, name, given) for name, side, given in some if name in only] for some in (beside, last)]
    late_cells = [cell(*one) for one in late for _ in range(repeats)]
    return [*(cell(*one) for one in early), *others[0], *late_cells, *others[1]]


def columns_of(title: str) -> tuple[str, ...]:
    """The times that mean something: of features, which are computed before the first epoch, the whole alone."""
    return COLUMNS[2:] if title.startswith("feature") else COLUMNS


def ratios_of(results: Results, facts: Figures) -> dict[str, float]:
    """Every figure as a ratio, the larger the better: medians of ratios within pairs, or of one side's own."""
    ratios: dict[str, float] = {}
    for title in [title for title in results if title in ROWS and OURS in results[title]]:
        sides = results[title]
        for column in columns_of(title):
            of_peers = {
                side: median(peer[column] / ours[column] for peer, ours in zip(sides[side], sides[OURS], strict=False))
                for side in sides
                if side != OURS and column in sides[side][0]
            }
            ratios |= {f"{title}: {column}, {side} ÷ ours": ratio for side, ratio in of_peers.items()}
            trainers = [ratio for side, ratio in of_peers.items() if side != BARE]
            ratios |= {f"{title}: {column}, best Trainer ÷ ours": min(trainers)} if len(trainers) > 1 else {}
        freeze, data = ROWS[title]
        if freeze == "none":
            rate = facts["operations"][data] / median(ours["warm"] for ours in sides[OURS])
            ratios[f"{title}: share of the bf16 product peak, warm"] = rate / facts["rate"]
        if freeze == "embeddings":
            ratios["snapshots: one ÷ all, embeddings frozen"] = sides[OURS][0]["snapshots"]
    for title in ("records", "callback"):
        for (figures,) in results.get(title, {}).values():
            ratios[f"{title}: milliseconds without ÷ with"] = 1 / median(figures["ratios"])
    if starts := results.get("start", {}).get(OURS):
        ratios["start: imports ÷ first step"] = median(one["imports"] / one["seconds"] for one in starts)
    if len(gloo := results.get("gloo", {})) == 2:
        full, frozen = (gloo[freeze][0]["bytes_per_step"] for freeze in ("none", "embeddings"))
        ratios["gloo: bytes per step, full ÷ embeddings frozen"] = full / frozen
    return {name: round(value, 3) for name, value in ratios.items()}


def print_table(results: Results, facts: Figures) -> None:
    """Every side's times, seconds, and memory, GiB; then the ratios."""
    names = (*COLUMNS, "GiB", "reserved", "in graphs")
    print(f"\n{facts['device']}, bf16 products at {facts['rate'] / 1e12:.1f} TFLOP/s at most. Medians; seconds, GiB:")
    print(f"{'':26}{'':10}" + "".join(f"{name:>10}" for name in names))
    for title in [title for title in ROWS if title in results]:
        for side, takes in results[title].items():
            values = {name: median(one[name] for one in takes) for name in names if name in takes[0]}
            shown = {name: f"{value:.2f}" for name, value in values.items() if name in (*columns_of(title), *names[3:])}
            print(f"{title:26}{side:10}" + "".join(f"{shown.get(name, '-'):>10}" for name in names))
    for title in ("records", "callback"):
        for side, (figures,) in results.get(title, {}).items():
            pairs = ", ".join(f"{ratio:.3f}" for ratio in figures["ratios"])
            print(f"{title}, {side}: {figures['with']:.2f} ms a step with, {figures['without']:.2f} without; {pairs}")
    for name, value in ratios_of(results, facts).items():
        print(f"{name:70} {value:8.3f}")


def main(
    *,
    data: str | None = None,
    tokenizer: str | None = None,
    max_length: int = 256,
    epochs: int | None = None,
    repeats: int | None = None,
    pairs: int = 5,
    only: tuple[Kind, ...] = (),
    peers: tuple[Peer, ...] = (),
    budget: float = 86_400,
    tiny: bool = False,
    out: Path | None = None,
    rest: bool = False,
    check: Path | None = None,
) -> str | int:
    """Measure what was asked for, print the table, and write or check the ratios.

    Args:
        data: folder with train.tsv and dev.tsv; without it the built-in task polarity
        tokenizer: folder with its files, for a GPU; without it the embedded model's
        max_length: tokens
        epochs: of each run, all scored; 3 by default, on a CPU, but of features, 2
        repeats: times each measurement is taken; 5 by default on a CPU, else 1
        pairs: of epochs with and without records
        only: what to measure; all by default
        peers: all by default, on a CPU tuned
        budget: seconds for all; what does not fit is not measured
        tiny: try a GPU's measurements with little of everything
        out: JSON file, or a folder for training_<device>.json
        rest: measure what the file --out lacks
        check: JSON file of ratios that must hold

    Returns:
        0, or what became worse, for `sys.exit`
    """
    started, taken, left_out = time.monotonic(), dict[tuple[str, str], list[Figures]](), []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"cuda": SIZES["tiny"], "cpu": SIZES["tiny"]} if tiny else SIZES
        facts = measure(
            context,
            "prepare",
            budget,
            folder=folder,
            sizes=sizes,
            data=data,
            tokenizer=tokenizer,
            max_length=max_length,
            is_tiny=tiny,
        )
        if facts is None:
            return "nothing could be measured"
        kind = "cuda" if tiny or facts["device"] != "cpu" else "cpu"
        if out and out.is_dir():
            out /= f"training_{re.sub('[^a-z0-9]+', '_', facts['device'].lower())}.json"
        before = json.loads(out.read_text()) if out and out.exists() else {}
        results: Results = before.get("measured", {}) if before.get("device") == facts["device"] else {}
        steps = plan(
            facts,
            kind,
            max_length=max_length,
            epochs=epochs,
            repeats=repeats or (5 if kind == "cpu" else 1),
            pairs=pairs,
            only=only or KINDS[kind],
            peers=peers or PEERS[kind],
        )
        for title, side, name, arguments in [one for one in steps if not rest or one[1] not in results.get(one[0], {})]:
            left = started + budget - time.monotonic()
            limit = min(left, budget * MOST_SHARE)
            figures = measure(context, name, limit, **arguments) if left > LEAST_SECONDS else None
            if figures is None:
                left_out.append(f"{title}, {side}")
                continue
            figures = json.loads(json.dumps(figures), parse_float=lambda text: round(float(text), 4))
            print(f"  {title}, {side}: {json.dumps(figures)} (after {time.monotonic() - started:.0f} s)", flush=True)
            taken.setdefault((title, side), []).append(figures)
            results.setdefault(title, {})[side] = taken[title, side]
            if out:
                of_gpu = {"device": facts["device"], "rate": facts["rate"], "measured": results}
                written = {**before, **ratios_of(results, facts), **(of_gpu if kind == "cuda" else {})}
                out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    print_table(results, facts)
    print(*(f"not measured: {one}" for one in left_out), sep="\n")
    ratios, expected = ratios_of(results, facts), json.loads(check.read_text()) if check else {}
    slack = {name: STRICT if name.startswith(MUST_BE_FREE) else SLACK for name in ratios}
    worse = [name for name, value in ratios.items() if value < slack[name] * expected.get(name, 0)]
    return "\n".join(f"worse: {name}: {ratios[name]}, was {expected[name]}" for name in worse) or 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
