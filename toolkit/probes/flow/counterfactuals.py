"""A model and texts in, what changes out when its position rows are shifted, permuted, replaced or taken away."""

import numpy as np
import pandas as pd

from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.probes.flow.changes import Changes
from toolkit.probes.flow.ledger import has_position_table
from toolkit.probes.flow.replacements import COUNTERFACTUALS, SHIFT, replaced_positions
from toolkit.probes.flow.stages import forward_stages, own_columns

NUM_TEXTS = 200


def measure_counterfactuals(
    loaded: Loaded,
    data: EncodedTask,
    split: EncodedSplit,
    *,
    has_head: bool = False,
    shift: int = SHIFT,
    num_texts: int = NUM_TEXTS,
    seed: int = 0,
) -> pd.DataFrame:
    """How far states, logits, predictions and the score move under each counterfactual.

    ``measure`` state: sqrt(sum |h' - h|² / sum |h|²) over real tokens, one line per stage; ``reference`` is the same
    for a state replaced by that of a random other token, so that a value reads as a share of "unrelated". With a
    trained head (``has_head``): logits likewise (reference: those of another text), predictions (share that changed),
    and score (the task's headline score afterwards minus before; reference: before). Intervals: 95 % of Student's t
    over texts, of a ratio by the jackknife; none for scores that are no mean over texts. ``unit_values`` (texts,) is
    what they come from: of accuracy, right afterwards minus right before. ``num_texts``: the first of the split in a
    random order. A model without a position table has one line that says not applicable. Definitions are ours.
    """
    columns = own_columns("counterfactuals")
    if not has_position_table(loaded):
        reason = "not applicable: the model has no position table"
        return pd.DataFrame([{"measure": "state", "reason": reason}], columns=columns)
    order = np.random.default_rng([*b"flow", seed]).permutation(len(split))[:num_texts]
    longest = int(split.lengths[order].max())
    sums = Changes(len(order))
    with in_eval_mode(loaded.model):
        for chosen in evaluation_batches(split.lengths[order]):
            before = forward_stages(loaded, split, order[chosen], data)
            sums.add_before(chosen, before)
            for name in COUNTERFACTUALS:
                with replaced_positions(loaded, name, longest=longest, shift=shift, seed=seed):
                    after = forward_stages(loaded, split, order[chosen], data)
                sums.add_after(name, chosen, before, after)
    lines = sums.state_lines()
    if has_head:
        labels = None if split.labels is None else split.labels[order]
        lines += sums.output_lines(data.task.kind, data.task.score, labels)
    return pd.DataFrame(lines, columns=columns).assign(num_texts=len(order))
