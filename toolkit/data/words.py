"""The word lists of the controlled tasks: pure data, each list one string parted by ", ".

Written for this project, free to use. Every content word is one token of BERT's uncased vocabulary, so a word is one
row of the embedding table; the two domains of a task (`IN`, `OOD`) share function words only. Both laws are tested.
"""

from collections.abc import Mapping
from typing import NamedTuple


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
