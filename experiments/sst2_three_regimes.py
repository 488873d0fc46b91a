"""Question: on SST-2, how far do the embeddings move, and is feature extraction as good as fine-tuning?

Three regimes of the embedded BERT on 20,000 training rows of SST-2, three epochs, scored on dev, test and two
out-of-distribution test sets. Hypothesis: full fine-tuning beats feature extraction by several points, and freezing the
embeddings costs nothing that can be seen.

    python experiments/sst2_three_regimes.py --data ../shared/data --out reports/sst2_three_regimes

The data are not part of this repository: DATA holds sst2/{train,dev,test}.tsv, uci_yelp/all.tsv and uci_amazon/all.tsv
with the columns text and label; experiments/data.sha256 has their sources, licences and sha256. Finished runs are kept,
so that the command can be repeated after an interruption.
"""

from pathlib import Path

from toolkit.config import RunConfig

REGIMES = ("none", "embeddings", "backbone")


def list_configs(data: Path, seeds: int) -> list[RunConfig]:
    """Regimes x seeds; the seed also draws the 20,000 rows."""
    return [
        RunConfig(
            freeze=regime,
            seed=seed,
            train_file=f"{data}/sst2/train.tsv",
            validation_file=f"{data}/sst2/dev.tsv",
            test_file=(
                f"test={data}/sst2/test.tsv",
                f"yelp={data}/uci_yelp/all.tsv",
                f"amazon={data}/uci_amazon/all.tsv",
            ),
            max_train_examples=20_000,
        )
        for seed in range(seeds)
        for regime in REGIMES
    ]


def main(*, data: Path, out: Path, seeds: int = 1) -> None:
    """Run what is missing and write the report.

    Args:
        data: folder of the data sets
        out: folder of the report
        seeds: seeds per regime
    """
    from toolkit.pipeline import finetune
    from toolkit.reporting.comparison_report import write_report
    from toolkit.reporting.folder import check_out

    check_out(out)
    runs = [finetune(config, reuse_finished=True) for config in list_configs(data, seeds)]
    sources = {
        "sst2": "SST-2 (Socher et al. 2013): no licence stated, released for research",
        "yelp": "Sentiment Labelled Sentences (Kotzias et al. 2015): CC BY 4.0 at UCI",
        "amazon": "Sentiment Labelled Sentences (Kotzias et al. 2015): CC BY 4.0 at UCI",
        "all of them": "experiments/data.sha256 has where each was taken from, how it was made, and its sha256",
    }
    print(f"Report: {write_report(runs, out, title='Three regimes on SST-2', sources=sources).path}")


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
