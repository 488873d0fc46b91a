"""A table and a figure of a paper, from finished runs: ``python experiments/paper_example.py RUN [RUN ...] OUT``."""

import sys
from pathlib import Path

import toolkit


def main(runs: list[str], out: str) -> None:
    """Write table.tex (drift by regime and parameter) and figure.pdf (the first run's drift against exposure)."""
    folder = Path(out)
    if folder.exists():
        raise ValueError(f"{folder} is there already: pass a new folder")
    table = toolkit.export_table(toolkit.drift_table(runs), caption="Embedding drift", label="drift")
    figure = toolkit.plot_exposure(runs[0], with_null=True)
    folder.mkdir(parents=True)
    (folder / "table.tex").write_text(table, encoding="utf-8")
    figure.save(folder / "figure.pdf")
    print(f"{folder / 'table.tex'} and {folder / 'figure.pdf'}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python experiments/paper_example.py RUN [RUN ...] OUT")
    try:
        main(sys.argv[1:-1], sys.argv[-1])
    except (ValueError, OSError) as error:  # no such run, or one whose embeddings were frozen: each says so in one line
        sys.exit(str(error))
