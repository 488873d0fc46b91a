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

The word lists were written for this project, free to use. Every content word is one token of BERT's uncased vocabulary,
so a word is one row of the embedding table; the two domains of a task (`IN`, `OOD`) share function words only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from toolkit.data.labels import RawSplit


class PolarityWords(NamedTuple):
    """Sentence frames, the names for their {name}, and topics: nouns, places and adjectives that all go together."""

    frames: tuple[str, ...]
    names: str
    topics: tuple[Mapping[str, str], ...]


class Taxonomy(NamedTuple):
    """Three levels (word < kind < root) with actions that fit every word in them, at every place."""

    root: str
    kinds: str
    actions: str
    places: str


POLARITY_IN = PolarityWords(
    frames=(
        "The {noun} {place} was {word}.",
        "{name} said that the {noun} {place} was {word}.",
        "{name} found the {noun} {place} {word}.",
        "The {noun} {place} seemed {word} to {name}.",
    ),
    names="Anna, Tom, Maria, Peter, Lucy, James, Emma, David, Sarah, Henry, Alice, Robert",
    topics=(
        {
            "noun": "waiter, driver, clerk, guard, manager, nurse, cook, teacher, guide, doctor, lawyer, porter",
            "place": "at the station, at the bank, at the airport, in the hotel, at the museum, in the hospital, "
            "at the library, on the ship, in the office, on the train, in the restaurant, at the school",
            "positive": "kind, friendly, polite, helpful, patient, gentle, honest, generous, cheerful, charming",
            "negative": "rude, hostile, cruel, arrogant, selfish, lazy, nasty, greedy, careless, vicious",
        },
        {
            "noun": "soup, bread, cake, salad, cheese, chicken, pie, sauce, rice, stew, steak, pizza",
            "place": "at the market, at the cafe, at the party, at the wedding, at the diner, from the kitchen, "
            "at the farm, at the inn, on the menu, at the picnic, on the buffet, from the canteen",
            "positive": "delicious, fresh, excellent, wonderful, perfect, splendid, exquisite, superb, nice, divine",
            "negative": "awful, rotten, disgusting, horrible, terrible, foul, stale, bland, vile, gross",
        },
        {
            "noun": "film, novel, song, play, poem, story, book, opera, ballet, musical, movie, comedy",
            "place": "about the war, about the king, about the sea, by the students, about the revolution, "
            "from France, from Germany, about the murder, about the desert, about the moon, by the twins",
            "positive": "brilliant, beautiful, funny, fascinating, exciting, magnificent, clever, impressive, "
            "memorable, inspiring",
            "negative": "dull, boring, pathetic, stupid, ridiculous, confusing, weak, silly, absurd, disappointing",
        },
        {
            "noun": "room, house, apartment, cabin, cottage, flat, bathroom, bedroom, hall, villa, hut, lodge",
            "place": "near the harbor, on the hill, behind the church, beside the lake, near the park, "
            "in the village, by the beach, above the shop, in the forest, near the river, opposite the castle",
            "positive": "clean, comfortable, lovely, bright, elegant, peaceful, spacious, cozy, tidy, luxurious",
            "negative": "dirty, ugly, filthy, noisy, damp, dusty, grim, dark, bleak, cramped",
        },
    ),
)

POLARITY_OOD = PolarityWords(
    frames=(
        "The {noun} {place} was {word}.",
        "{name} thought that the {noun} {place} was {word}.",
        "{name} called the {noun} {place} {word}.",
        "The {noun} {place} appeared {word} to {name}.",
    ),
    names="Laura, Paul, Helen, Martin, Julia, Simon, Clara, Frank",
    topics=(
        {
            "noun": "uncle, cousin, neighbor, coach, captain, priest, officer, singer, pilot, mayor",
            "place": "from Chicago, from Canada, from London, in the choir, at the club, at the funeral, "
            "at the meeting, in the garden",
            "positive": "loyal, brave, wise, thoughtful, sincere, sweet, decent, humble",
            "negative": "mean, violent, jealous, evil, stubborn, corrupt, ruthless, wicked",
        },
        {
            "noun": "trip, tour, voyage, flight, holiday, visit, ride, journey",
            "place": "to the island, to the coast, to the mountains, to the city, to Rome, to Paris, to the border, "
            "to the volcano",
            "positive": "amazing, enjoyable, fantastic, pleasant, relaxing, great, delightful, fun",
            "negative": "miserable, dreadful, unpleasant, frustrating, disastrous, painful, dangerous, frightening",
        },
        {
            "noun": "phone, camera, watch, computer, bike, radio, lamp, knife, umbrella, printer",
            "place": "from the factory, from the catalog, in the window, in the box, on the shelf, on the counter, "
            "from the warehouse, in the garage",
            "positive": "reliable, useful, good, handy, sturdy, valuable, efficient, remarkable",
            "negative": "useless, broken, faulty, worthless, bad, defective, inferior, fragile",
        },
    ),
)

# The verbs are what persons and animals can do to each other; past tense and participle are alike.
ORDER_IN: Mapping[str, str] = {
    "person": "nurse, farmer, teacher, doctor, soldier, lawyer, student, boy, girl, woman, man, king, queen, priest, "
    "sailor, hunter, driver, painter, baker, singer, captain, thief, child, butcher, monk, tourist",
    "animal": "dog, cat, horse, goat, cow, pig, sheep, wolf, fox, bear, monkey, goose, donkey, bull, deer, lion, "
    "tiger, elephant, duck, rabbit, snake, rat, parrot, camel, owl, turtle",
    "verb": "followed, chased, watched, noticed, found, heard, passed, approached, avoided, ignored, trusted, helped, "
    "saved, rescued, protected, guarded, caught, surprised, frightened, attacked, delayed, startled, touched, pursued, "
    "teased, confused",
    "adjunct": "in the garden, near the river, behind the barn, in the field, on the bridge, in the forest, "
    "at the market, on the beach, near the church, in the village, outside the castle, beside the lake, "
    "on the farm, on Monday, on Friday, at noon, last week, this morning, last winter, in the snow, "
    "behind the house, before dinner, during the storm, after the parade",
}

ORDER_OOD: Mapping[str, str] = {
    "person": "engineer, poet, actress, mayor, widow, clerk, guest, officer, scientist, prince, duke, bride, tailor, "
    "merchant, pilot, librarian",
    "animal": "swan, pony, crow, hawk, chicken, turkey, leopard, panther, buffalo, mule, lizard, frog, squirrel, "
    "raven, puppy, crocodile",
    "verb": "scared, admired, feared, disturbed, annoyed, tracked, met, recognized, injured, stopped, greeted, loved, "
    "hated, liked, defended, blocked",
    "adjunct": "in the yard, near the station, behind the school, on the hill, in the desert, at the harbor, "
    "on the island, near the tower, in the valley, outside the palace, beside the pond, in the street, on Sunday, "
    "on Tuesday, at dawn, last summer, before lunch, during the festival, at midnight, last month",
}

PAIR_IN = (
    Taxonomy(
        root="animal",
        kinds="bird: sparrow, robin, eagle, hawk, crow, owl; dog: hound, bulldog, greyhound, labrador, husky; "
        "insect: beetle, ant, bee, butterfly, wasp, moth; snake: python, cobra, viper",
        actions="rested, moved, slept, appeared, hid, waited, was seen, was found",
        places="near the river, under the bridge, behind the barn, in the garden, beside the road, on the roof, "
        "near the gate, in the grass, beside the pond",
    ),
    Taxonomy(
        root="person",
        kinds="scientist: chemist, physicist, biologist, astronomer; athlete: boxer, swimmer, cyclist, wrestler, "
        "sprinter; doctor: surgeon, dentist, physician, psychiatrist; relative: aunt, uncle, cousin, nephew, niece",
        actions="waited, stood, slept, sat, smiled, laughed, cried, sang",
        places="at the door, in the lobby, on the balcony, at the station, in the theater, near the window, "
        "in the corridor, on the stairs, on the platform",
    ),
    Taxonomy(
        root="vehicle",
        kinds="car: taxi, limousine, sedan, convertible; boat: canoe, ferry, yacht, raft; aircraft: helicopter, jet, "
        "bomber, glider",
        actions="was stolen, was sold, was repaired, was seen, was abandoned, burned, was photographed, vanished",
        places="near the harbor, in the city, near the border, outside the factory, on the coast, on the island, "
        "near the beach, beside the camp, near the airport",
    ),
    Taxonomy(
        root="building",
        kinds="house: cottage, villa, mansion, bungalow; church: cathedral, chapel, abbey, basilica; shop: bakery, "
        "pharmacy, bookstore, boutique; school: academy, college, kindergarten; hotel: inn, motel, hostel",
        actions="was built, was sold, was bought, was destroyed, burned, was repaired, collapsed, was photographed",
        places="near the lake, on the hill, in the capital, in the suburb, beside the highway, near the museum, "
        "in the valley, beside the canal, near the cemetery",
    ),
    Taxonomy(
        root="plant",
        kinds="tree: oak, pine, maple, cedar, willow, birch; flower: rose, lily, orchid, daisy, iris; "
        "vegetable: carrot, onion, cabbage, potato, pumpkin",
        actions="grew, died, was planted, was damaged, survived, was found, was cut, was drawn",
        places="near the wall, beside the fence, in the greenhouse, on the farm, in the park, beside the path, "
        "near the fountain, in the courtyard, in the garden",
    ),
)

PAIR_OOD = (
    Taxonomy(
        root="weapon",
        kinds="gun: pistol, rifle, revolver, shotgun; blade: sword, dagger, saber, knife; explosive: bomb, grenade, "
        "torpedo",
        actions="was hidden, was discovered, was recovered, was lost, was displayed, was stored",
        places="in the attic, in the cellar, in the tunnel, at the fort, on the ship, in the warehouse",
    ),
    Taxonomy(
        root="container",
        kinds="bag: purse, backpack, suitcase, sack, briefcase, pouch; box: crate, chest, casket",
        actions="lay, was left, was emptied, was forgotten, was searched, was dropped",
        places="on the table, in the kitchen, on the train, in the office, in the closet, on the sofa",
    ),
    Taxonomy(
        root="drink",
        kinds="wine: champagne, burgundy, sherry; beer: ale, stout, porter; liquor: whiskey, vodka, brandy, rum, gin",
        actions="was served, was ordered, was offered, was tasted, was refused, was requested",
        places="at the feast, at the banquet, in the restaurant, at the wedding, in the pub, at the party",
    ),
    Taxonomy(
        root="work of art",
        kinds="film: comedy, thriller, documentary, western; poem: ode, ballad, limerick; song: hymn, anthem, "
        "lullaby, carol; painting: portrait, landscape, mural, fresco",
        actions="was praised, was admired, was discussed, was reviewed, was mocked, was mentioned",
        places="in the paper, in the magazine, on television, in the lecture, in the letter, in the interview",
    ),
)


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


def _once(drawn: Iterable[tuple[T, Any]]) -> Iterator[tuple[T, Any]]:
    """What is drawn for the first time, by the first of its two parts."""
    seen: set[T] = set()
    for key, rest in drawn:
        if key not in seen:
            seen.add(key)
            yield key, rest


def _sentence(text: str) -> str:
    """A clause as a sentence; str.capitalize would put names into lower case."""
    return f"{text[0].upper()}{text[1:]}."


def _polarity_units(domain: PolarityWords, bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: a new context with a negative (0) and with a positive (1) adjective."""
    names = _deck(domain.names, bits)
    topics = [(cycle(_shuffled(domain.frames, bits)), _decks(topic, bits)) for topic in domain.topics]
    contexts = (
        (next(frames).format(noun=next(own["noun"]), place=next(own["place"]), name=next(names), word="{word}"), own)
        for frames, own in cycle(topics)
    )
    for context, own in _once(contexts):
        yield tuple(((context.format(word=next(own[key])),), label) for label, key in enumerate(POLARITY_LABELS))


def _events(domain: Mapping[str, str], bits: np.random.PCG64) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Events without end: person, animal, verb and adjunct; whether the adjunct stands first."""
    decks = _decks(domain, bits)
    return _once((tuple(next(deck) for deck in decks.values()), is_fronted) for is_fronted in cycle((False, True)))


def _order_units(domain: Mapping[str, str], bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: one event in both voices and both orders; 1 where the person is the actor."""
    for unit in _role_units(domain, bits):
        texts = (" ".join(words).replace(" ,", ",").replace(" .", ".") for words, _ in unit)
        yield tuple(((text,), label) for text, label in zip(texts, (1, 0, 0, 1), strict=True))


ROLE_TAGS = ("O", "B-actor", "I-actor", "B-acted_upon", "I-acted_upon")


def _role_units(domain: Mapping[str, str], bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: one event in both voices and both orders, each word with its tag."""
    for (person, animal, verb, adjunct), is_fronted in _events(domain, bits):
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


def _pair_units(domain: Sequence[Taxonomy], bits: np.random.PCG64) -> Iterator[Unit]:
    """Units without end: (word, kind) and (kind, root) in one frame (1), and both swapped (0)."""
    kinds = []
    for taxonomy in domain:
        for kind, listed in (entry.split(": ") for entry in taxonomy.kinds.split("; ")):
            decks = _deck(listed, bits), _deck(taxonomy.actions, bits), _deck(taxonomy.places, bits)
            kinds.append((kind, taxonomy.root, decks))
    clauses = (
        ((kind, f"{next(actions)} {next(places)}"), (leaves, root))
        for kind, root, (leaves, actions, places) in cycle(kinds)
    )
    for (kind, frame), (leaves, root) in _once(clauses):
        low, middle, high = (_sentence(f"{_article(noun)} {noun} {frame}") for noun in (next(leaves), kind, root))
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
        joined: list[tuple[str, ...]] = [(" ".join(words),) for words in texts]
        splits[name] = RawSplit(joined, labels, words=texts) if has_words else RawSplit(texts, labels)
    return splits


BUILTIN_TASKS: Mapping[str, BuiltinTask] = {
    "polarity": BuiltinTask(
        POLARITY_LABELS,
        "Word identity: one adjective decides, and every context comes with a negative and a positive one.",
        partial(_splits, _polarity_units, (POLARITY_IN, POLARITY_OOD), SEED),
    ),
    "order": BuiltinTask(
        ("acted_upon", "actor"),
        "Word order: does the person do it, or is it done to the person? Each bag of words has both labels.",
        partial(_splits, _order_units, (ORDER_IN, ORDER_OOD), SEED + 1),
    ),
    "pair": BuiltinTask(
        ("not_entailed", "entailed"),
        "The relation of two sentences: the first entails the second if its noun is a kind of the other's.",
        partial(_splits, _pair_units, (PAIR_IN, PAIR_OOD), SEED + 2),
    ),
}

BUILTIN_TOKEN_TASKS: Mapping[str, BuiltinTask] = {
    "roles": BuiltinTask(
        ROLE_TAGS,
        "Word order and voice: who does it, to whom is it done? Every noun is tagged both ways equally often.",
        partial(_splits, _role_units, (ORDER_IN, ORDER_OOD), SEED + 3, has_words=True),
    ),
}
