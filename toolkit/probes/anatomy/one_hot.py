"""A sentence in, the proof that a look-up is a one-hot vector times a matrix out."""

import pandas as pd
import torch

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.parts import find_parts
from toolkit.probes.anatomy.sentence import Sentence
from toolkit.schema import columns_of

BLOCK = 64
"""Tokens at once: one-hot vectors of a large vocabulary fill the memory."""


def compare_one_hot(loaded: Loaded, sentence: Sentence) -> pd.DataFrame:
    """One line per table: (tokens, rows) one-hot vectors @ (rows, width) table against nn.Embedding, in fp32.

    The two are equal bit for bit: all other products are 0, and adding 0 rounds nothing.
    """
    used = (sentence.words, sentence.positions, sentence.segments)
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    tables = find_parts(loaded).tables
    lines = []
    for name, rows in zip(names, used, strict=True):
        if rows is None or name not in tables:
            continue
        table = tables[name]
        ids = torch.as_tensor(rows, device=table.weight.device)
        difference = 0.0
        with torch.inference_mode():
            for block in torch.split(ids, BLOCK):
                one_hot = torch.nn.functional.one_hot(block, table.num_embeddings).to(table.weight.dtype)
                product = one_hot @ table.weight
                difference = max(difference, float((product - table(block)).abs().max()))
        lines.append((name, len(ids), *table.weight.shape, difference, difference == 0))
    return pd.DataFrame(lines, columns=columns_of("take_apart.one_hot"))
