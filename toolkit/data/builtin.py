"""The four controlled tasks (three of texts, one of words): in each, one known property carries the label.

The examples come in units of two or four, which differ in that property and in nothing else and whose labels balance.
No unit is parted between splits, so in every split whatever the label must not depend on is at chance by construction:

- polarity: a context comes with a negative and with a positive adjective. In `ood` every adjective is new, so a bag of
  words fitted on `train` scores exactly 0.5 there.
- order: {active, passive} x {person first, animal first}. Both orders have the same bag of words and opposite labels,
  so a model without positions scores 0.5. Neither the voice alone nor the first noun alone tells anything.
- pair: (word, kind) and (kind, root) in one frame, and both swapped. The bag of both sentences scores 0.5. One sentence
  alone scores 0.75 at best: a lowest word is always the specific one and a root never is; a kind is, half of the time.
  With three levels it cannot be less: the ends of a chain of L levels give .5 + .5/(L - 1) away.
- roles (a token task): sentences as in order, with each word tagged: who does it, to whom is it done? Every noun is
  tagged both ways equally often, so that no list of words with their tags tells one from the other.

The data never depend on a run's seed. `ood` shares only function words with the other splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from typing import Any, TypeAlias, TypeVar

import numpy as np

from toolkit.data import words
from toolkit.data.raw import RawSplit, split_of_words

SEED = 20240517
SPLIT_SIZES: Mapping[str, int] = {"train": 2000, "validation": 500, "test": 500, "ood": 500}
OUT_OF_DISTRIBUTION = ("ood",)
"""Of SPLIT_SIZES: its content words are in no other split."""
POLARITY_LABELS = ("negative", "positive")


@dataclass(frozen=True, slots=True)
class BuiltinTask:
    """A task this project ships."""

    label_names: tuple[str, ...]
    carrier: str
    """One sentence: what carries the label."""
    build: Callable[[], dict[str, RawSplit]]
    """Makes the splits train, validation, test, ood, in this order; labels are places in ``label_names``."""


T = TypeVar("T")
Unit: TypeAlias = tuple[tuple[tuple[str, ...], Any], ...]
"""Examples: one or two texts and a label, or of a token task words and the tag of each."""


def _shuffled(items: Sequence[T], bits: np.random.PCG64) -> list[T]:
    """The items in random order."""
    # Raw bits, not Generator.permutation: numpy keeps a bit generator's stream, methods may change (NEP 19).
    return [items[i] for i in np.argsort(bits.random_raw(len(items)), kind="stable")]


def _deck(listed: str, bits: np.random.PCG64) -> Iterator[str]:
    """The words of a list without end, in shuffled rounds: each is used equally often, within one."""
    cards = listed.split(", ")
    while True:
        yield from _shuffled(cards, bits)


def _decks(lists: Mapping[str, str], bits: np.random.PCG64) -> dict[str, Iterator[str]]:
    """A deck for each named word list."""
    return {name: _deck(listed, bits) for name, listed in lists.items()}


def _sentence(text: str) -> str:
    """A clause as a sentence; str.capitalize would put names into lower case."""
    return f"{text[0].upper()}{text[1:]}."


def _polarity_units(domain: words.PolarityWords, bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: a new context with a negative (0) and with a positive (1) adjective."""
    names = _deck(domain.names, bits)
    topics = [(cycle(_shuffled(domain.frames, bits)), _decks(topic, bits)) for topic in domain.topics]
    seen: set[str] = set()
    for frames, topic in cycle(topics):
        noun, place = next(topic["noun"]), next(topic["place"])
        context = next(frames).format(name=next(names), noun=noun, place=place, word="{word}")
        if context in seen:
            continue
        seen.add(context)
        yield tuple(((context.format(word=next(topic[key])),), label) for label, key in enumerate(POLARITY_LABELS))


def _events(domain: Mapping[str, str], bits: np.random.PCG64) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Events without end: whether the adjunct stands first; person, animal, verb and adjunct."""
    decks = _decks(domain, bits)
    seen: set[tuple[str, ...]] = set()
    for is_fronted in cycle((False, True)):
        event = tuple(next(decks[key]) for key in decks)
        if event in seen:
            continue
        seen.add(event)
        yield is_fronted, event


def _order_units(domain: Mapping[str, str], bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: one event in both voices and both orders; 1 where the person is the actor."""
    for is_fronted, (person, animal, verb, adjunct) in _events(domain, bits):
        unit = []
        for is_passive, (first, second) in product((False, True), ((person, animal), (animal, person))):
            clause = f"the {first} was {verb} by the {second}" if is_passive else f"the {first} {verb} the {second}"
            text = _sentence(f"{adjunct}, {clause}" if is_fronted else f"{clause} {adjunct}")
            unit.append(((text,), int(person == (second if is_passive else first))))
        yield tuple(unit)


ROLE_TAGS = ("O", "B-actor", "I-actor", "B-acted_upon", "I-acted_upon")


def _role_units(domain: Mapping[str, str], bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: one event in both voices and both orders, each word with its tag."""
    for is_fronted, (person, animal, verb, adjunct) in _events(domain, bits):
        unit = []
        for is_passive, (first, second) in product((False, True), ((person, animal), (animal, person))):
            roles = (("the", 3), (first, 4)), (("the", 1), (second, 2))
            if not is_passive:
                roles = (("the", 1), (first, 2)), (("the", 3), (second, 4))
            between = (("was", 0), (verb, 0), ("by", 0)) if is_passive else ((verb, 0),)
            where = tuple((word, 0) for word in adjunct.split())
            clause = (*roles[0], *between, *roles[1])
            tagged = (*where, (",", 0), *clause) if is_fronted else (*clause, *where)
            texts, tags = zip(*tagged, (".", 0), strict=True)
            unit.append(((texts[0][0].upper() + texts[0][1:], *texts[1:]), tags))
        yield tuple(unit)


def _pair_units(domain: Sequence[words.Taxonomy], bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: (word, kind) and (kind, root) in one frame (1), and both swapped (0)."""
    kinds = []
    for taxonomy in domain:
        for kind, listed in (entry.split(": ") for entry in taxonomy.kinds.split("; ")):
            decks = _deck(listed, bits), _deck(taxonomy.actions, bits), _deck(taxonomy.places, bits)
            kinds.append((kind, taxonomy.root, decks))
    seen: set[tuple[str, str]] = set()
    for kind, root, (leaves, actions, places) in cycle(kinds):
        frame = f"{next(actions)} {next(places)}"
        if (kind, frame) in seen:
            continue
        seen.add((kind, frame))
        leaf = next(leaves)
        low, middle, high = (_sentence(f"{_article(noun)} {noun} {frame}") for noun in (leaf, kind, root))
        yield ((low, middle), 1), ((middle, low), 0), ((middle, high), 1), ((high, middle), 0)


def _article(noun: str) -> str:
    """``a`` or ``an``; the word lists have no silent h and no noun like "unit"."""
    return "an" if noun[0] in "aeiou" else "a"


def _splits(
    units: Callable[[Any, np.random.PCG64], Iterator[Unit]],
    domains: tuple[Any, Any],
    seed: int,
    has_words: bool = False,
) -> dict[str, RawSplit]:
    """Shuffled splits of units of both domains; the sizes are multiples of a unit, so none is divided."""
    bits = np.random.PCG64(seed)
    known, new = (units(domain, bits) for domain in domains)
    splits = {}
    for name, size in SPLIT_SIZES.items():
        examples: list[tuple[tuple[str, ...], Any]] = []
        while len(examples) < size:
            examples.extend(next(new if name == "ood" else known))
        texts, labels = map(list, zip(*_shuffled(examples, bits), strict=True))
        splits[name] = split_of_words(texts, labels) if has_words else RawSplit(texts, labels)
    return splits


BUILTIN_TASKS: Mapping[str, BuiltinTask] = {
    "polarity": BuiltinTask(
        POLARITY_LABELS,
        "Word identity: one adjective decides, and every context comes with a negative and a positive one.",
        partial(_splits, _polarity_units, (words.POLARITY_IN, words.POLARITY_OOD), SEED),
    ),
    "order": BuiltinTask(
        ("acted_upon", "actor"),
        "Word order: does the person do it, or is it done to the person? Each bag of words has both labels.",
        partial(_splits, _order_units, (words.ORDER_IN, words.ORDER_OOD), SEED + 1),
    ),
    "pair": BuiltinTask(
        ("not_entailed", "entailed"),
        "The relation of two sentences: the first entails the second if its noun is a kind of the other's.",
        partial(_splits, _pair_units, (words.PAIR_IN, words.PAIR_OOD), SEED + 2),
    ),
}

BUILTIN_TOKEN_TASKS: Mapping[str, BuiltinTask] = {
    "roles": BuiltinTask(
        ROLE_TAGS,
        "Word order and voice: who does it, to whom is it done? Every noun is tagged both ways equally often.",
        partial(_splits, _role_units, (words.ORDER_IN, words.ORDER_OOD), SEED + 3, has_words=True),
    ),
}
