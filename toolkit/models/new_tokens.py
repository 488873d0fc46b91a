"""Tokens that a run adds to its checkpoint: read from a file, given rows, and trained without the old rows."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from toolkit.config import RunConfig
from toolkit.models.classifier import Loaded
from toolkit.naming import first_few, meant_by, reading
from toolkit.snapshots.files import sha256_of_file

MOST_NAMED = 5
"""Tokens that an error names."""


def read_tokens(path: str | Path) -> tuple[str, ...]:
    """The tokens of a text file, one a line; ValueError for a file or a line without one, and for a repeated one."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file at {path}{meant_by(path)}: --add-tokens names a text file with one token a line")
    with reading(path, remedy="--add-tokens names a text file, in UTF-8, with one token a line"):
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    if lines == [""]:
        raise ValueError(f"{path} is empty: --add-tokens names a text file with one token a line")
    line_of_token: dict[str, int] = {}
    for number, token in enumerate(lines, start=1):
        if not token.strip():
            raise ValueError(f"{path}, line {number}: a token must be more than white space; remove the line")
        if token != token.strip():
            raise ValueError(
                f"{path}, line {number}: {token!r} begins or ends with white space, which texts would lack"
            )
        if (first_line := line_of_token.setdefault(token, number)) < number:
            raise ValueError(f"{path} names {token!r} twice, in lines {first_line} and {number}: remove one")
    return tuple(lines)


def with_new_tokens(loaded: Loaded, config: RunConfig) -> Loaded:
    """A checkpoint with the tokens of ``--add-tokens`` and, under ``--train-rows new``, its old rows held.

    ValueError for a file or tokens that cannot be added, and for a word table of which rows cannot be trained alone.
    """
    if config.add_tokens is None:
        return loaded
    tokens, sha256 = read_tokens(config.add_tokens), sha256_of_file(Path(config.add_tokens))
    loaded = add_tokens(loaded, tokens, init=config.new_token_init, seed=config.seed)
    assert loaded.added is not None
    loaded = replace(loaded, added={**loaded.added, "sha256": sha256})
    if config.train_rows == "new":
        hold_old_rows(loaded)
    return loaded


def add_tokens(loaded: Loaded, tokens: Sequence[str], *, init: str, seed: int) -> Loaded:
    """Add tokens to tokenizer and word table in place; ``added`` of what comes back says which, where and how.

    ``init``: each new row is the ``mean`` of the rows of the tokens that were there, or ``random``: normal, of the
    standard deviation that the checkpoint's config gives as initializer_range, drawn with ``seed``. transformers' own
    default draws from a normal of the old rows' mean and covariance. Tokens that the tokenizer had before without a row
    get rows the same way.

    ValueError for tokens that are there already, as they stand or as the tokenizer reads them, and for those that a
    text of them would not give.
    """
    tokenizer, backbone, name = loaded.tokenizer, loaded.model.backbone, loaded.source.name
    if already_there := [token for token in tokens if token in tokenizer.get_vocab()]:
        raise ValueError(f"in the vocabulary of {name} already: {_quoted(already_there)}; remove from --add-tokens")
    for token in tokens:  # which may be another token but for what the tokenizer takes away, such as upper case
        token_ids = tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(token_ids) == 1 and token_ids[0] != tokenizer.unk_token_id:
            existing = tokenizer.convert_ids_to_tokens(token_ids[0])
            raise ValueError(
                f"the tokenizer of {name} reads {token!r} as its token {existing!r} already, whose texts the added one "
                "would take over; remove it from --add-tokens"
            )
    tokenizer.add_tokens(list(tokens))
    rows = tokenizer.convert_tokens_to_ids(list(tokens))
    unread = [t for t, row in zip(tokens, rows, strict=True) if row not in tokenizer(t)["input_ids"]]
    if unread or rows != list(range(rows[0], rows[0] + len(rows))):
        raise ValueError(
            f"the tokenizer of {name} does not give a row of its own to {_quoted(unread or tokens)}: is it the same as "
            "another token but for what the tokenizer takes away, such as upper case?"
        )
    _warn_of_split_words(tokenizer, rows[0], tokens)
    if rows[-1] >= (size := backbone.get_input_embeddings().num_embeddings):  # type: ignore[operator]
        with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
            backbone.resize_token_embeddings(rows[-1] + 1, mean_resizing=False)  # type: ignore[operator]
    table: nn.Parameter = backbone.get_input_embeddings().weight  # type: ignore[operator]
    # Of rows to fill: a tokenizer may have had tokens before that the table has no row for.
    first_row = min(rows[0], size)
    with torch.no_grad():
        if init == "mean":
            table[first_row : rows[-1] + 1] = table[:first_row].double().mean(dim=0).to(table.dtype)
        elif (deviation := getattr(backbone.config, "initializer_range", None)) is None:
            raise ValueError(f"the config of {name} has no initializer_range for --new-token-init random: take mean")
        else:
            shape = (rows[-1] + 1 - first_row, table.shape[1])
            draws = np.random.default_rng([*b"new tokens", seed]).normal(0, deviation, shape)
            table[first_row : rows[-1] + 1] = torch.from_numpy(draws).to(table.dtype)
    return replace(loaded, added={"tokens": list(tokens), "first_row": rows[0], "init": init})


def _warn_of_split_words(tokenizer: Any, first_row: int, tokens: Sequence[str]) -> None:
    """Say so where words of the old vocabulary hold an added token, which the tokenizer now takes out of them."""
    old_tokens = [token for token, row in tokenizer.get_vocab().items() if row < first_row and token not in tokens]
    words = sorted(
        {word for token in old_tokens if (word := tokenizer.convert_tokens_to_string([token]).strip()).isalpha()}
    )
    ids_of_words = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
    added = {token.casefold() for token in tokens}
    with_added = [word for word, ids in zip(words, ids_of_words, strict=True) if max(ids, default=0) >= first_row]
    if split_words := [word for word in with_added if word.casefold() not in added]:
        warnings.warn(
            "added tokens are taken out of longer words too: of the vocabulary, "
            f"{_quoted(split_words)} are read in parts now",
            stacklevel=2,
        )


def _quoted(tokens: Sequence[str]) -> str:
    return first_few([*map(repr, tokens)], MOST_NAMED)


class HeldTable(nn.Module):
    """A word table of which only some rows, one after another, are trained: ``weight``; all others are ``old_rows``.

    Two parameters, because one cannot be trained in part: weight decay and momentum reach rows that have no gradient.
    """

    def __init__(self, table: nn.Embedding, rows: range) -> None:
        super().__init__()
        all_rows = table.weight.detach()
        self.first_row, self.num_embeddings, self.padding_idx = rows.start, table.num_embeddings, table.padding_idx
        self.weight = nn.Parameter(all_rows[rows.start : rows.stop].clone())
        self.old_rows = nn.Parameter(torch.cat([all_rows[: rows.start], all_rows[rows.stop :]]), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(..., hidden) the rows of (...) ids."""
        new_index = ids - self.first_row
        is_new = (new_index >= 0) & (new_index < len(self.weight))
        old_ids = torch.where(new_index < 0, ids, ids - len(self.weight))
        old_vectors = functional.embedding(old_ids.masked_fill(is_new, 0), self.old_rows)
        new_vectors = functional.embedding(new_index.masked_fill(~is_new, 0), self.weight)
        return torch.where(is_new.unsqueeze(-1), new_vectors, old_vectors)

    @property
    def whole_table(self) -> torch.Tensor:
        """(rows, hidden) all rows in their order."""
        return torch.cat([self.old_rows[: self.first_row], self.weight, self.old_rows[self.first_row :]])


def hold_old_rows(loaded: Loaded) -> None:
    """Have the word table train its added rows alone; ValueError where it is more than a table that looks rows up."""
    backbone: Any = loaded.model.backbone
    table, name = backbone.get_input_embeddings(), loaded.source.name
    if type(table) is not nn.Embedding:
        raise ValueError(f"--train-rows new: the word table of {name} is a {type(table).__name__}, not a plain table")
    uses = [
        parameter_name for parameter_name, p in backbone.named_parameters(remove_duplicate=False) if p is table.weight
    ]
    if len(uses) > 1:
        raise ValueError(f"--train-rows new: the word table of {name} is tied to {uses[1]}, which would lose its rows")
    assert loaded.added is not None
    first_row = loaded.added["first_row"]
    backbone.set_input_embeddings(HeldTable(table, range(first_row, first_row + len(loaded.added["tokens"]))))


def whole_state(backbone: nn.Module, state: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor] | None:
    """What ``save_pretrained`` is to write of a backbone whose old rows are held; of any other ``state``.

    ``state``: what it would write else, where that is not the backbone's own.
    """
    table: Any = backbone.get_input_embeddings()  # type: ignore[operator]
    if not isinstance(table, HeldTable):
        return state
    (name_of_table,) = (name for name, module in backbone.named_modules() if module is table)
    state = {n: tensor for n, tensor in (state or backbone.state_dict()).items() if n != f"{name_of_table}.old_rows"}
    return state | {f"{name_of_table}.weight": table.whole_table.detach()}
