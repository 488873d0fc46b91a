"""Question: how often does the interval of a paired difference hold the true difference, with few seeds?

Simulated studies of two arms, right or wrong on the same items with the same seeds. An answer is right where a normal
score is above 0: the arm's level + the item (common to both arms) + arm x item + arm x seed + noise, so that the true
difference over all seeds and items is known exactly. Two worlds, of about the discordance that regimes of one model
show: `apart` (10 %, mostly the same items in every seed) and `alike` (1 to 4 %, other items in every seed). Each with
no seed variance and with two amounts of it. Printed: share of studies whose 95 % interval holds the truth, and its mean
width in points, for the two-way interval and, beside it, the hierarchical percentile bootstrap. The two arms of `alike`
are truly equal, so that 1 - coverage is there the rate of false positives.

    OMP_NUM_THREADS=1 python experiments/benchmarks/coverage.py [--studies 1000 --items 400 --draws 500]
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import tyro
from numpy.typing import NDArray
from scipy.special import ndtr

from toolkit.comparison.intervals import Interval, hierarchical_interval, mean_squares, two_way_interval

SEEDS = (2, 3, 5, 8, 20)
SEED_SDS = (0.0, 0.05, 0.2)
"""Of the normal score of an arm."""


@dataclass(frozen=True)
class World:
    """Levels of the two arms, and standard deviations of the score that decides right or wrong; items make up 1."""

    first: float
    second: float
    arm_item: float
    noise: float

    def simulate(self, num_seeds: int, num_items: int, seed_sd: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """(seeds, items) differences, first arm right minus second arm right."""
        item = np.sqrt(1 - self.arm_item**2 - self.noise**2) * rng.standard_normal(num_items)
        right = []
        for level in (self.first, self.second):
            score = self.noise * rng.standard_normal((num_seeds, num_items), dtype=np.float32)
            score += level + item + self.arm_item * rng.standard_normal(num_items)
            score += seed_sd * rng.standard_normal((num_seeds, 1))
            right.append(score > 0)
        return right[0].astype(np.float64) - right[1]

    def true_difference(self, seed_sd: float) -> float:
        """Expected difference over all seeds and items."""
        total = np.sqrt(1 + seed_sd**2)
        return float(ndtr(self.first / total) - ndtr(self.second / total))


WORLDS = {"apart": World(1.3, 1.0, 0.33, 0.15), "alike": World(1.3, 1.3, 0.01, 0.05)}


def measure_cell(
    world: World, num_seeds: int, seed_sd: float, *, num_studies: int, num_items: int, num_draws: int, seed: int = 0
) -> dict[str, float]:
    """Coverage and mean width of both intervals over simulated studies; ``num_draws`` 0 leaves the bootstrap out."""
    rng, truth = np.random.default_rng([seed, num_seeds, round(1000 * seed_sd)]), world.true_difference(seed_sd)
    studies = [world.simulate(num_seeds, num_items, seed_sd, rng) for _ in range(num_studies)]
    squares = np.mean([mean_squares(study) for study in studies], axis=0)
    line = {
        "seed_sd_points": 100 * np.sqrt(max(0.0, squares[0] - squares[2]) / num_items),
        "discordance": float(np.mean([np.mean(study != 0) for study in studies])),
    }
    line |= _summarise("two_way", [two_way_interval(study) for study in studies], truth)
    if num_draws:
        drawn = [hierarchical_interval(study, num_draws=num_draws, seed=i) for i, study in enumerate(studies)]
        line |= _summarise("bootstrap", drawn, truth)
    return line


def _summarise(name: str, intervals: list[Interval], truth: float) -> dict[str, float]:
    bounds = np.array([(interval.low, interval.high) for interval in intervals])
    holds = (bounds[:, 0] <= truth) & (truth <= bounds[:, 1])
    return {f"{name}_coverage": float(holds.mean()), f"{name}_width_points": 100 * float(np.ptp(bounds, axis=1).mean())}


def main(*, studies: int = 1000, items: int = 400, draws: int = 500) -> None:
    """Simulate, and print a line for each world."""
    lines = [
        {"world": name, "seeds": num_seeds}
        | measure_cell(
            world,
            num_seeds,
            seed_sd,
            num_studies=studies,
            num_items=items,
            num_draws=draws,
        )
        for name, world in WORLDS.items()
        for num_seeds in SEEDS
        for seed_sd in SEED_SDS
    ]
    print(f"{studies} studies of {items} items in each line, {draws} bootstrap draws")
    print(pd.DataFrame(lines).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
