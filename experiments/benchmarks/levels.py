"""Question: of many claims in one report, how often is a true null "supported", and how often are true effects found?

Reports of 30 claims, each a difference of two conditions that are right or wrong on the same items with the same seeds.
An answer is right with the chance expit(level + item + condition x item + condition x seed + noise), so that nothing of
it is what the formulas assume. Claims differ in their seeds' standard deviation (of each condition, in logits): 0, .15,
.5, these three in turn, Student's t of 2.5 degrees of freedom with a standard deviation of .5, and, beside the cells of
the contract, five claims of .5 among 25 of 0. A claim is supported where the two-way interval excludes 0 and q < .05.
Printed per cell: the share of reports in which any of 30 nulls is supported, then the share found of three true effects
of 4.6 points among 27 nulls, with p by Satterthwaite's degrees of freedom, by K - 1, by limma's moderated variance
(Smyth 2004) and by the toolkit's own (toolkit/comparison/multiplicity.py).

    OMP_NUM_THREADS=1 python experiments/benchmarks/levels.py [--reports 4000 --claims 30 --threads 2]
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import tyro
from numpy.typing import NDArray
from scipy.special import digamma, expit, polygamma, stdtr
from scipy.stats import false_discovery_control

from toolkit.comparison.multiplicity import moderated_p

Array = NDArray[np.float64]
LEVEL, ITEM_SD, CONDITION_ITEM_SD, NOISE_SD, EFFECT = 1.2, 1.5, 0.5, 0.7, 0.33
"""Logits; EFFECT is of the true effects."""
SEEDS, ITEMS, NUM_TRUE = (3, 5, 10), (200, 872), 3
HEAVY, HEAVY_DF = -1.0, 2.5
"""What stands for the heavy tails in the place of a standard deviation, and their degrees of freedom."""
WORLDS = {
    "0": (0.0,),
    ".15": (0.15,),
    ".5": (0.5,),
    "0, .15, .5 mixed": (0.0, 0.15, 0.5),
    "heavy tails": (HEAVY,),
    "five of .5, rest 0": (0.5, 0.0, 0.0, 0.0, 0.0, 0.0),
}
NUM_OF_CONTRACT = 5
"""Worlds on which the summary is taken: the last one is harder than what was asked for."""
REACH, STEPS = 14.0, 4096
"""The chance of a right answer is looked up, in steps over this many logits to either side."""


def chances() -> NDArray[np.uint16]:
    """(STEPS,) the mean of expit(x + noise) over the noise, as 65535ths."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    x = np.linspace(-REACH, REACH, STEPS)[:, None]
    found: NDArray[np.float64] = expit(x + NOISE_SD * nodes) @ weights / weights.sum()
    return np.round(65535 * found).astype(np.uint16)


def simulate(num_claims: int, seed_sd: float, effect: float, rng: np.random.Generator) -> Array:
    """(claims, SEEDS, ITEMS, 4) mean and mean squares of differences, the fewer seeds and items from among the more."""
    found, table, scale = np.empty((num_claims, len(SEEDS), len(ITEMS), 4)), chances(), (STEPS - 1) / (2 * REACH)
    for start in range(0, num_claims, 60):
        size = min(60, num_claims - start)
        item = LEVEL + ITEM_SD * rng.standard_normal((size, 1, ITEMS[-1]), np.float32)
        condition_item = CONDITION_ITEM_SD * rng.standard_normal((size, 1, ITEMS[-1]), np.float32)
        right = []
        for side in (0.5, -0.5):
            shape = (size, SEEDS[-1], 1)
            heavy = 0.5 * np.sqrt((HEAVY_DF - 2) / HEAVY_DF) * rng.standard_t(HEAVY_DF, shape)
            seed = heavy if seed_sd == HEAVY else seed_sd * rng.standard_normal(shape)
            logits = item + side * condition_item + (effect if side > 0 else 0.0)
            places = (scale * (logits + REACH) + 0.5 + (scale * seed).astype(np.float32)).astype(np.int16)
            np.clip(places, 0, STEPS - 1, out=places)
            right.append(rng.integers(0, 65535, places.shape, np.uint16) < table[places])
        found[start : start + size] = squares_of(right[0].astype(np.int8) - right[1])
    return found


def squares_of(differences: NDArray[np.int8]) -> Array:
    """Mean and mean squares of (claims, seeds, items) differences of -1, 0 and 1, for SEEDS and ITEMS of them."""
    found = np.empty((len(differences), len(SEEDS), len(ITEMS), 4))
    for place, num_items in enumerate(ITEMS):
        own = differences[:, :, :num_items]
        by_seed, spread = own.sum(axis=2, dtype=np.float64), np.count_nonzero(own, axis=2)
        for row, num_seeds in enumerate(SEEDS):
            size = num_seeds * num_items
            by_item = own[:, :num_seeds].sum(axis=1, dtype=np.float64)
            total = by_seed[:, :num_seeds].sum(axis=1)
            seed = (by_seed[:, :num_seeds] ** 2).sum(axis=1) / num_items - total**2 / size
            item = (by_item**2).sum(axis=1) / num_seeds - total**2 / size
            residual = spread[:, :num_seeds].sum(axis=1) - total**2 / size - seed - item
            dfs = (num_seeds - 1, num_items - 1, (num_seeds - 1) * (num_items - 1))
            parts = [part / df for part, df in zip((seed, item, residual), dfs, strict=True)]
            found[:, row, place] = np.stack([total / size, *parts], axis=1)
    return found


def satterthwaite(means: Array, squares: Array, num_seeds: int, num_items: int, seed_df: Array | float) -> Array:
    """p of the two-way interval; ``seed_df``: of the mean square between seeds."""
    seed, item, residual = np.moveaxis(squares, -1, 0)
    total = np.maximum(np.maximum(seed + item - residual, seed), 1e-12)
    rest = item**2 / (num_items - 1) + residual**2 / ((num_seeds - 1) * (num_items - 1))
    df = np.maximum(total**2 / (seed**2 / seed_df + rest), num_seeds - 1.0)
    p: Array = 2 * stdtr(df, -np.abs(means) / np.sqrt(total / (num_seeds * num_items)))
    return p


def limma(means: Array, squares: Array, num_seeds: int, num_items: int) -> Array:
    """p with MS_seed moderated over the claims of a report by limma's moments of its logarithm (Smyth 2004)."""
    df, own = num_seeds - 1, np.maximum(squares[..., 0], 1e-12)
    logs = np.log(own) - digamma(df / 2) + np.log(df / 2)
    spread = np.maximum(logs.var(axis=-1, ddof=1, keepdims=True) - polygamma(1, df / 2), 1e-6)
    half = 0.5 + 1 / spread
    for _ in range(12):  # Newton's method for polygamma(1, half) = spread
        slope = polygamma(1, half)
        half = half + slope * (1 - slope / spread) / polygamma(2, half)
    scale = np.exp(logs.mean(axis=-1, keepdims=True) + digamma(half) - np.log(half))
    moderated = squares.copy()
    moderated[..., 0] = (2 * half * scale + df * own) / (2 * half + df)
    return satterthwaite(means, moderated, num_seeds, num_items, 2 * half + df)


def supported(reports: Array, num_seeds: int, num_items: int) -> dict[str, NDArray[np.bool_]]:
    """Per way to a p the (reports, claims) that are supported."""
    means, squares = reports[..., 0], reports[..., 1:]
    own = satterthwaite(means, squares, num_seeds, num_items, num_seeds - 1)
    total = np.maximum(np.maximum(squares[..., 0] + squares[..., 1] - squares[..., 2], squares[..., 0]), 1e-12)
    ways = {
        "Satterthwaite": own,
        "K - 1": 2 * stdtr(num_seeds - 1.0, -np.abs(means) / np.sqrt(total / (num_seeds * num_items))),
        "limma": limma(means, squares, num_seeds, num_items),
        "toolkit": moderated_p(means, squares, num_seeds, num_items),
    }
    return {name: (own < 0.05) & (false_discovery_control(p, axis=-1) < 0.05) for name, p in ways.items()}


def bank_of(seed_sd: float, *, reports: int, claims: int) -> tuple[Array, Array]:
    """(reports, claims, ...) nulls and (reports, NUM_TRUE, ...) true effects, of one standard deviation of seeds."""
    rng = np.random.default_rng([2026, round(1000 * (seed_sd + 2))])
    nulls, effects = (simulate(reports * num, seed_sd, size, rng) for num, size in ((claims, 0), (NUM_TRUE, EFFECT)))
    shape = nulls.shape[1:]
    return nulls.reshape(reports, claims, *shape), effects.reshape(reports, NUM_TRUE, *shape)


def main(*, reports: int = 4000, claims: int = 30, threads: int = 2) -> None:
    """Simulate, print a line for each cell, and the largest and mean level of each way over those of the contract."""
    sds = list(dict.fromkeys(sd for world in WORLDS.values() for sd in world))
    with ThreadPoolExecutor(threads) as pool:
        banks = dict(zip(sds, pool.map(partial(bank_of, reports=reports, claims=claims), sds), strict=True))
    lines = []
    for row, num_seeds in enumerate(SEEDS):
        for place, num_items in enumerate(ITEMS):
            for world, own in WORLDS.items():
                turns = [own[claim % len(own)] for claim in range(claims)]
                nulls = np.stack([banks[sd][0][:, claim, row, place] for claim, sd in enumerate(turns)], axis=1)
                effects = nulls.copy()
                for claim, sd in enumerate(turns[:NUM_TRUE]):
                    effects[:, claim] = banks[sd][1][:, claim, row, place]
                line: dict[str, object] = {"seeds": num_seeds, "items": num_items, "seed SD": world}
                any_of = {k: float(v.any(axis=1).mean()) for k, v in supported(nulls, num_seeds, num_items).items()}
                hits = supported(effects, num_seeds, num_items)
                line |= {f"any: {name}": value for name, value in any_of.items()}
                line |= {f"found: {name}": float(found[:, :NUM_TRUE].mean()) for name, found in hits.items()}
                lines.append(line | {"gap": 100 * float(effects[:, :NUM_TRUE, 0].mean())})
    table = pd.DataFrame(lines)
    print(f"{reports} reports of {claims} claims in each line; gap: mean true effect in points")
    print(table.to_string(index=False, float_format="{:.3f}".format))
    contract = table[table["seed SD"].isin(list(WORLDS)[:NUM_OF_CONTRACT])].filter(like="any: ")
    print(contract.agg(["max", "mean"]).to_string(float_format="{:.4f}".format))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
