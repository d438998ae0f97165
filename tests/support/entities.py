"""Drawn sentences of labels, true and predicted, of which a library has counted the entities."""

import random

SCHEMES = {"bio": "BI", "bioes": "BIES"}
TYPES = ("PER", "geo-loc", "X")


def labels_of(scheme: str) -> tuple[str, ...]:
    return ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in SCHEMES[scheme]))


def drawn_sentences(scheme: str, number: int = 1000) -> tuple[list[list[str]], list[list[str]]]:
    """Returns true and predicted labels: half of the sentences are drawn freely, half differ in a few words."""
    rng, labels = random.Random(13), labels_of(scheme)
    true = [rng.choices(labels, k=rng.randint(1, 17)) for _ in range(number)]
    predicted = []
    for index, sentence in enumerate(true):
        rate = 1 if index % 2 else 0.1
        predicted.append([rng.choice(labels) if rng.random() < rate else label for label in sentence])
    return true, predicted
