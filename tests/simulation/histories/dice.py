"""Everything that a history leaves to chance, each throw by its own name."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any


class Dice:
    """Numbers that follow from a seed, a name, and how often that name was asked for.

    One name's numbers do not depend on what others drew: where something is left out of a history,
    the rest of it stays much as it was, and so a failure can be shrunk.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._thrown: Counter[str] = Counter()
        self._weights: dict[str, int] = {}

    def roll(self, name: str, count: int) -> int:
        """From 0 to `count` - 1."""
        self._thrown[name] += 1
        return _hash(f"{self._seed} {name} {self._thrown[name]}") % count

    def pick[Option](self, name: str, options: Sequence[Option]) -> Option:
        """One of them."""
        return options[self.roll(name, len(options))]

    def shuffle(self, listed: list[Any]) -> None:
        """In place."""
        for index in range(len(listed) - 1, 0, -1):
            other = self.roll("shuffle", index + 1)
            listed[index], listed[other] = listed[other], listed[index]

    def first(self, names: Sequence[str]) -> int:
        """Whose turn it is, as an index; each keeps its place in the line until it has had it."""
        index = min(range(len(names)), key=lambda each: self._weight(names[each]))
        self._thrown[names[index]] += 1
        del self._weights[names[index]]
        return index

    def _weight(self, name: str) -> int:
        if name not in self._weights:
            self._weights[name] = _hash(f"{self._seed} turn {name} {self._thrown[name]}")
        return self._weights[name]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest())
