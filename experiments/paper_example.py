"""One table and one figure of a paper, from one finished run: ``python experiments/paper_example.py RUN OUT``."""

import sys
from pathlib import Path

import toolkit


def main(run_dir: str, out: str) -> None:
    """Write table.tex (drift by cause and stratum) and figure.pdf (drift against exposure, with its null)."""
    folder = Path(out)
    if folder.exists():
        raise ValueError(f"{folder} is there already: pass a new folder")
    run = toolkit.open_run(run_dir)
    last = run.trajectory.snapshots[-1].epoch
    causes = toolkit.explain(run, "word_embeddings", last)
    folder.mkdir(parents=True)
    (folder / "table.tex").write_text(causes.to_latex(index=False, float_format="%.3g", escape=True), encoding="utf-8")
    toolkit.plot_exposure(run, with_null=True).save(folder / "figure.pdf")
    print(f"{folder / 'table.tex'} and {folder / 'figure.pdf'}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python experiments/paper_example.py RUN OUT")
    try:
        main(*sys.argv[1:])
    except (ValueError, OSError) as error:  # no such run, or one whose embeddings were frozen: each says so in one line
        sys.exit(str(error))
