"""Small runs whose causes are known: torch.optim moves one word table on gradients that the test chooses."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from toolkit.snapshots.logs import Exposure, OptimizerLog, TableExposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory

WORDS = "word_embeddings"


def make_log(rates, *, decay=0.01, is_fused=False, clipping=None, **changes) -> OptimizerLog:
    """A log of AdamW with these learning rates."""
    values = {
        "algorithm": "torch.optim.AdamW",
        "is_fused": is_fused,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": {WORDS: decay},
        "learning_rates": np.array(rates, np.float64),
        "head_learning_rates": np.array(rates, np.float64),
        "clipping_factors": np.ones(len(rates)) if clipping is None else np.asarray(clipping, np.float64),
        "precision": "no",
    }
    return OptimizerLog(**(values | changes))


def make_sgd_log(rates, **changes) -> OptimizerLog:
    """A log of SGD without momentum with these learning rates."""
    return make_log(rates, **({"algorithm": "torch.optim.SGD", "betas": (np.nan, np.nan), "eps": np.nan} | changes))


def warm_up_and_decay(num_steps: int, peak: float = 5e-4) -> np.ndarray:
    """Linear warm-up over a tenth of the steps, then linear decay, as the toolkit trains."""
    step, rise = np.arange(num_steps), max(1, num_steps // 10)
    return peak * np.minimum((step + 1) / rise, (num_steps - step) / (num_steps - rise))


def optimize(rows: np.ndarray, gradients, log: OptimizerLog, dtype=torch.float32) -> np.ndarray:
    """(steps + 1, n, hidden) rows before and after each step of torch.optim.AdamW, or of SGD: the slow oracle."""
    parameter = torch.nn.Parameter(torch.from_numpy(rows.copy()).to(dtype))
    decay = log.weight_decay[WORDS]
    if log.is_sgd:
        optimizer = torch.optim.SGD([parameter], lr=1.0)
    else:
        optimizer = torch.optim.AdamW(
            [parameter], lr=1.0, betas=log.betas, eps=log.eps, weight_decay=decay, fused=log.is_fused
        )
    path = [parameter.detach().numpy().copy()]
    for gradient, rate, factor in zip(gradients, log.learning_rates, log.clipping_factors, strict=True):
        optimizer.param_groups[0]["lr"] = float(rate)
        parameter.grad = torch.from_numpy(np.asarray(gradient)).to(dtype) * torch.tensor(factor, dtype=dtype)
        if log.is_sgd:
            with torch.no_grad():
                parameter.mul_(1 - float(rate) * decay)
        optimizer.step()
        path.append(parameter.detach().numpy().copy())
    return np.array(path)


@dataclass(frozen=True)
class Planted:
    """A run and the truth about it."""

    trajectory: Trajectory
    log: OptimizerLog
    path: np.ndarray
    """(steps + 1, rows, hidden) the table at each step."""
    exposed: np.ndarray
    """(steps, rows) bool."""


def plant(
    direction: Callable[[np.random.Generator, int, np.ndarray], np.ndarray],
    exposed: np.ndarray,
    *,
    hidden: int = 32,
    snapshot_steps: tuple[int, ...] = (),
    log: OptimizerLog | None = None,
    seed: int = 0,
    size: float = 1e-3,
    sigma: float = 1.0,
    has_norms: bool = True,
) -> Planted:
    """Train a table whose exposed rows get gradients ``direction(rng, step, rows)`` (n, hidden) of lognormal sizes.

    Snapshots: epoch 0, those steps (as fractions of the one epoch), and epoch 1 at the end.
    """
    rng = np.random.default_rng([3, seed])
    num_steps, num_rows = exposed.shape
    log = log or make_log(warm_up_and_decay(num_steps), clipping=rng.uniform(0.1, 1, num_steps))
    gradients = np.zeros((num_steps, num_rows, hidden), np.float32)
    records = []
    for step, mask in enumerate(exposed):
        rows = np.flatnonzero(mask)
        sizes = size * rng.lognormal(0, sigma, (len(rows), 1))
        gradients[step, rows] = sizes * direction(rng, step, rows)
        norms = np.linalg.norm(gradients[step, rows], axis=1).astype(np.float32)
        norms = norms if has_norms else norms * np.nan
        records.append(TableExposure.of_step(rows.astype(np.int32), np.ones(len(rows), np.int32), norms))
    path = optimize(rng.normal(0, 0.04, (num_rows, hidden)).astype(np.float32), gradients, log)
    exposure = Exposure({WORDS: TableExposure.join(records)})
    snapshots = [Snapshot(step / num_steps, step, {WORDS: path[step]}) for step in (0, *snapshot_steps, num_steps)]
    return Planted(Trajectory(snapshots, read_exposure=lambda: exposure), log, path, exposed)


def signs(hidden: int = 32):
    """Directions whose coordinates are coin tosses."""
    return lambda rng, step, rows: rng.choice([-1.0, 1.0], (len(rows), hidden))


def gaussian(hidden: int = 32):
    """Directions that are uniform: Gaussian coordinates."""
    return lambda rng, step, rows: rng.normal(size=(len(rows), hidden))


def constant(hidden: int = 32):
    """One direction per row, the same at every step."""
    fixed = np.random.default_rng(4).choice([-1.0, 1.0], (10_000, hidden))
    return lambda rng, step, rows: fixed[rows]


def random_exposure(num_steps: int, num_rows: int, share: float, seed: int = 0) -> np.ndarray:
    """(steps, rows) bool: each row exposed at each step with its own probability, ``share`` on average."""
    rng = np.random.default_rng([5, seed])
    return rng.random((num_steps, num_rows)) < share * rng.exponential(1, num_rows)
