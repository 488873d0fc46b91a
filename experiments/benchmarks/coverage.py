"""Question: how often does the interval of a paired difference hold the true difference, with few seeds?

Simulated studies of two conditions on the same items with the same seeds, in which the true difference over all seeds
and items is known. What a condition says of an item is its level + the item (common to both conditions) + condition x
item + condition x seed + noise. Printed: share of studies whose 95 % interval holds the truth (1,000 studies tell it to
.007), and its mean width in points. Of items in clusters twenty times as many are simulated (.0016).

*accuracy*: right or wrong, in two worlds of about the discordance that regimes of one model show: `apart` (10 %, mostly
the same items in every seed) and `alike` (1 to 4 %, other items in every seed), whose conditions are truly equal, so
that 1 - coverage is there the rate of false positives. *clusters*: the same with half of the variance of the items
shared by those of a cluster; the two-way interval over items, beside that over clusters. *scores*: no means over items;
the interval over seeds alone, beside that over seeds and items, by the influence of each item.

    OMP_NUM_THREADS=1 python experiments/benchmarks/coverage.py [--studies 1000 --items 400]
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import tyro
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from toolkit.comparison.influence import SCORES
from toolkit.comparison.intervals import Interval, by_cluster, mean_squares, seeds_interval, two_way_interval

SEEDS = (2, 3, 5, 8, 20)
SEED_SDS = (0.0, 0.05, 0.2)
"""Of the normal score of a condition."""
SHARED = 0.5
"""Share of the variance of items that those of a cluster have in common."""


@dataclass(frozen=True)
class World:
    """Levels of two conditions, and standard deviations of the score that decides right or wrong; items make up 1."""

    first: float
    second: float
    condition_item: float
    noise: float

    def simulate(
        self, num_seeds: int, num_items: int, seed_sd: float, rng: np.random.Generator, size: int = 1
    ) -> NDArray[np.float64]:
        """(seeds, items) differences, first right minus second right; clusters are of ``size`` neighbours."""

        def of_items() -> NDArray[np.float64]:
            own = rng.standard_normal(num_items)
            shared = np.repeat(rng.standard_normal(num_items // size), size) if size > 1 else own
            return own if size == 1 else np.sqrt(1 - SHARED) * own + np.sqrt(SHARED) * shared

        item = np.sqrt(1 - self.condition_item**2 - self.noise**2) * of_items()
        right = []
        for level in (self.first, self.second):
            score = self.noise * rng.standard_normal((num_seeds, num_items), dtype=np.float32)
            score += level + item + self.condition_item * of_items()
            score += seed_sd * rng.standard_normal((num_seeds, 1))
            right.append(score > 0)
        return right[0].astype(np.float64) - right[1]

    def true_difference(self, seed_sd: float) -> float:
        """Expected difference over all seeds and items."""
        total = np.sqrt(1 + seed_sd**2)
        return float(ndtr(self.first / total) - ndtr(self.second / total))


WORLDS = {"apart": World(1.3, 1.0, 0.33, 0.15), "alike": World(1.3, 1.3, 0.01, 0.05)}


def measure_cell(
    world: World, num_seeds: int, seed_sd: float, *, num_studies: int, num_items: int, size: int = 1, seed: int = 0
) -> dict[str, float]:
    """Coverage and mean width over simulated studies, whose items come in clusters of ``size``."""
    rng, truth = np.random.default_rng([seed, num_seeds, round(1000 * seed_sd)]), world.true_difference(seed_sd)
    studies = [world.simulate(num_seeds, num_items, seed_sd, rng, size) for _ in range(num_studies)]
    squares = np.mean([mean_squares(study) for study in studies], axis=0)
    line = {
        "seed_sd_points": 100 * np.sqrt(max(0.0, squares[0] - squares[2]) / num_items),
        "discordance": float(np.mean([np.mean(study != 0) for study in studies])),
    }
    line |= _summarise("items", map(two_way_interval, studies), truth)
    if size > 1:
        clusters = np.arange(num_items) // size
        line |= _summarise("clusters", (two_way_interval(by_cluster(study, clusters)) for study in studies), truth)
    return line


def _summarise(name: str, intervals: Iterable[Interval], truth: float) -> dict[str, float]:
    bounds = np.array([(interval.low, interval.high) for interval in intervals])
    holds = (bounds[:, 0] <= truth) & (truth <= bounds[:, 1])
    return {f"{name}_coverage": float(holds.mean()), f"{name}_width_points": 100 * float(np.ptp(bounds, axis=1).mean())}


KINDS = {"targets": ("r2", "pearson", "spearman"), "classes": ("f1", "macro_f1", "matthews")}
LEVELS = (0.8, 0.7)
PARTS = {"targets": (0.4, 0.3, 0.2), "classes": (0.5, 0.4, 0.3)}
"""Standard deviations of what is common to both conditions, of condition x item, and of noise."""
RARE = 0.3
"""Share of the second class, whose F1 is taken."""


def simulate_answers(
    kind: str, seed_parts: NDArray[np.float64], num_items: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(items,) labels and (2, seeds, items) predictions, from the (2, seeds) parts of the seeds.

    Of targets a seed changes the slope of the predictions, of classes the threshold.
    """
    labels = rng.standard_normal(num_items)
    labels = labels if kind == "targets" else (labels > -ndtri(RARE)).astype(float)
    common, condition_item, noise = PARTS[kind]
    parts = common * rng.standard_normal(num_items) + condition_item * rng.standard_normal((2, 1, num_items))
    parts = parts + noise * rng.standard_normal((*seed_parts.shape, num_items))
    levels, seeds = np.array(LEVELS)[:, None, None], seed_parts[:, :, None]
    if kind == "targets":
        return labels, (levels + seeds) * labels + parts
    return labels, (levels * (2 * labels - 1) + seeds + parts > 0).astype(float)


def score_cells(num_studies: int) -> Iterator[dict[str, object]]:
    """A line for each score, number of seeds and items, and spread of seeds."""
    for kind, scores in KINDS.items():
        for seed_sd in (0.0, 0.05):
            # What all seeds and items would say: evenly spaced seeds, and very many items.
            nodes = seed_sd * ndtri((np.arange(15) + 0.5) / 15) if seed_sd else np.zeros(1)
            labels, answers = simulate_answers(kind, np.stack([nodes] * 2), 200_000, np.random.default_rng(1))
            means = {
                s: [float(np.mean([SCORES[s](labels, own)[0] for own in condition])) for condition in answers]
                for s in scores
            }
            for num_seeds in (3, 5, 10):
                for num_items in (200, 872):
                    rng = np.random.default_rng([num_seeds, num_items, round(1000 * seed_sd)])
                    tables: dict[str, list[NDArray[np.float64]]] = {score: [] for score in scores}
                    for _ in range(num_studies):
                        seed_parts = seed_sd * rng.standard_normal((2, num_seeds))
                        labels, answers = simulate_answers(kind, seed_parts, num_items, rng)
                        for score in scores:
                            found = [[sum(SCORES[score](labels, own)) for own in condition] for condition in answers]
                            tables[score].append(np.subtract(*np.array(found)))
                    for score in scores:
                        first, second = means[score]
                        by_seed = (seeds_interval(table.mean(axis=1)) for table in tables[score])
                        line = _summarise("seeds", by_seed, first - second)
                        line |= _summarise("seeds_and_items", map(two_way_interval, tables[score]), first - second)
                        yield {"score": score, "seeds": num_seeds, "items": num_items, "seed_sd": seed_sd, **line}


def main(*, studies: int = 1000, items: int = 400) -> None:
    """Simulate, and print a line for each world, number of seeds and spread of seeds; then for clusters and scores."""
    lines = [
        {"world": name, "seeds": num_seeds}
        | measure_cell(world, num_seeds, seed_sd, num_studies=studies, num_items=items)
        for name, world in WORLDS.items()
        for num_seeds in SEEDS
        for seed_sd in SEED_SDS
    ]
    clustered = [
        {"in_a_cluster": size, "seeds": num_seeds}
        | measure_cell(WORLDS["apart"], num_seeds, seed_sd, num_studies=20 * studies, num_items=items, size=size)
        for size in (5, 10)
        for num_seeds in (3, 5, 8)
        for seed_sd in SEED_SDS
    ]
    print(f"{studies} studies a line, {20 * studies} in clusters, of {items} items where no other number stands")
    for table in (lines, clustered, score_cells(studies)):
        print("\n" + pd.DataFrame(table).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
