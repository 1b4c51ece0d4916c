"""Sentences written for the tests: enough distinct ones, of different lengths, that belong to nobody."""

from itertools import product

WHO = "A farmer|The pilot|An old teacher|My neighbour|The violinist|A young doctor|The mayor|Her cousin"
DOES = "repairs|paints|describes|forgets|carries|sells|admires|borrows|photographs"
WHAT = "a wooden boat|the broken clock|three letters|a map of the coast|the garden gate|an empty suitcase"
WHERE = "behind the station|in the rain|after lunch|near the river, where nobody looks|with great care|twice a year"


def sentences(count: int) -> list[str]:
    """Up to 2,592 distinct sentences, the same every time, neighbours unlike."""
    every = [" ".join(words) + "." for words in product(*(part.split("|") for part in (WHO, DOES, WHAT, WHERE)))]
    return [every[(i * 701) % len(every)] for i in range(count)]
