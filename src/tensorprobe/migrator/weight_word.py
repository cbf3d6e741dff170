"""What the path of a layer says, apart from how it is spelt: `h.0.attn.wq` and `layers.0.self_attention.q_proj`.

weight_word.json has the words:

words      other spellings of a word; `phrases`: of two words
neutral    words that say only what kind of layer or container it is, which shapes say as well
families   sibling layers whose names are known together only: the norms of a block are `input_layernorm` and
           `post_attention_layernorm`, or `attention_norm` and `ffn_norm`. The members stand in one order; `of`: a block
           with more layers of this word is none of them; `unsaid`: words that do not count here
opposites  two words for two halves of a network; they are known if a network has no other two of these. The second
           half is counted from its beginning by some, from its end by others: its numbers mean the same under the same
           word only
joined     layers that hold several others in one matrix, and those whose parts surely lie one after the other

A number says which of its siblings a layer is: the second of four, whether they are counted from 0 or from 1. The last
number of a path counts layers of one kind only: `0` and `3` of a sequence are its first and second convolution.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from typing import Any

Path = tuple[str, ...]
_Number = tuple[int, ...]
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_DIMENSION = re.compile(r"(?<=[a-z])[123][dD](?![a-z0-9])")  # of Conv2d
_NUMBER = re.compile(r"[0-9]+")
_FAMILY_DEPTH = 3


@cache
def weight_words() -> dict[str, Any]:
    """The whole table."""
    content: dict[str, Any] = json.loads(files("tensorprobe.migrator").joinpath("weight_word.json").read_text("utf-8"))
    return content


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a path says."""

    words: frozenset[str]
    numbers: tuple[tuple[int, int, str], ...]
    """Of each numbered part that has numbered siblings: how many these are, which of them it is, and under which word,
    if that makes a difference."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for size, _, _ in self.numbers)


class Naming:
    """The paths of all layers of one network, each known by its siblings too."""

    def __init__(self, shapes: Mapping[Path, tuple[tuple[int, ...], ...]]) -> None:
        self._kinds = {path: tuple(map(len, weights)) for path, weights in shapes.items()}
        families: dict[Hashable, set[_Number]] = {}
        for path, kind in self._kinds.items():
            for place, part in enumerate(path):
                families.setdefault(_family_of(path, place), set()).add(_numbers(part))
            if path:
                families.setdefault((*_family_of(path, len(path) - 1), kind), set()).add(_numbers(path[-1]))
        self._siblings = {
            family: {number: rank for rank, number in enumerate(sorted(numbers))}
            for family, numbers in families.items()
        }
        """Of each part of a path, and of layers by the dimensions of their weights, too."""
        self._members = _find_members(shapes)
        self._opposites = _find_opposites({word for path in shapes for word in self._words(path, self._depth(path))})

    def meaning(self, path: Path) -> Meaning:
        """With what the siblings of a layer say of it."""
        depth = self._depth(path)
        words = {self._opposites.get(word, word) for word in self._words(path, depth)}
        words.update(family for family, _ in [self._members.get(path, ("", 0))] if family)
        return Meaning(frozenset(words), self._ranks(path, depth))

    def plain_meaning(self, path: Path) -> Meaning:
        """By its own words only, where the other network has no such siblings."""
        return Meaning(frozenset(self._words(path, 0)), self._ranks(path, 0))

    def siblings(self, path: Path) -> list[dict[_Number, int]]:
        """For each part, the numbers that it and its siblings have, and which of them each is."""
        return [self._siblings.get(_family_of(path, place), {}) for place in range(len(path))]

    def _depth(self, path: Path) -> int:
        """How many of its last parts are known by the siblings."""
        return self._members.get(path, ("", 0))[1]

    def _words(self, path: Path, depth: int) -> set[str]:
        said = {word for part in path[: len(path) - depth] for word in split_words(part) if not word.isdigit()}
        return said - _neutral()

    def _ranks(self, path: Path, depth: int) -> tuple[tuple[int, int, str], ...]:
        siblings = self.siblings(path)
        if path in self._kinds and path:
            of_kind = (*_family_of(path, len(path) - 1), self._kinds[path])
            siblings[-1] = self._siblings[of_kind]
        found, half = [], ""
        for part, numbers in list(zip(path, siblings, strict=True))[: len(path) - depth]:
            half = next((word for word in split_words(part) if word in _second_halves()), half)
            if len(numbers) > 1:
                found.append((len(numbers), numbers[_numbers(part)], half))
                half = ""
        return tuple(found)


def is_counted_otherwise(path: Path, naming: Naming, other: Naming) -> bool:
    """Does a number in it mean another sibling there? One network counts 0, 1, 2 and the other 1, 2, 3."""
    for part, numbers, other_numbers in zip(path, naming.siblings(path), other.siblings(path), strict=True):
        own = _numbers(part)
        if len(numbers) == len(other_numbers) and numbers.get(own) != other_numbers.get(own):
            return True
    return False


@lru_cache(maxsize=65536)
def split_words(part: str) -> tuple[str, ...]:
    """The words of one part of a path, in one spelling; numbers are words of their own.

    >>> split_words("post_attention_layernorm"), split_words("LayerNorm"), split_words("wq"), split_words("ln_1")
    (('post', 'attention', 'norm'), ('norm',), ('query',), ('norm', '1'))
    """
    table = weight_words()
    found = [word.lower() for word in _WORD.findall(_DIMENSION.sub("", part))]
    said = " ".join(
        table["words"].get(word) or table["words"].get(_singular(word)) or _singular(word) for word in found
    )
    for phrase, word in table["phrases"].items():
        said = re.sub(rf"\b{phrase}\b", word, said)
    return tuple(said.split())


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@cache
def _neutral() -> frozenset[str]:
    return frozenset(weight_words()["neutral"])


@cache
def _second_halves() -> frozenset[str]:
    return frozenset(second for _, second in weight_words()["opposites"])


def _family_of(path: Path, place: int) -> tuple[Path, str]:
    return path[:place], _NUMBER.sub("#", path[place])


def _numbers(part: str) -> _Number:
    return tuple(map(int, _NUMBER.findall(part)))


def _find_members(shapes: Mapping[Path, tuple[tuple[int, ...], ...]]) -> dict[Path, tuple[str, int]]:
    """Layers that belong to a family: its word for them, and how many parts of their path that word stands for."""
    below: dict[Path, dict[str, list[Path]]] = {}
    for path in shapes:
        for depth in range(1, min(_FAMILY_DEPTH, len(path)) + 1):
            said = " ".join(word for part in path[-depth:] for word in split_words(part))
            text = " ".join(word for word in said.split() if word not in weight_words()["unsaid"])
            below.setdefault(path[:-depth], {}).setdefault(text, []).append(path)
    found: dict[Path, tuple[str, int]] = {}
    for number, family in enumerate(weight_words()["families"]):
        for parent, members in product(sorted(below), family["members"]):
            layers = below[parent]
            paths = [layers[text][0] for text in members if len(layers.get(text, ())) == 1]
            if len(paths) == len(members) and not _has_others(paths, family["of"], layers, shapes):
                for place, path in enumerate(paths):
                    found.setdefault(path, (f"family {number} {place}", len(path) - len(parent)))
    return found


def _has_others(
    members: list[Path],
    word: str,
    layers: Mapping[str, list[Path]],
    shapes: Mapping[Path, tuple[tuple[int, ...], ...]],
) -> bool:
    """Has the block more layers of this word, in the same shape?"""
    if not word:
        return False
    alike = {path for text, paths in layers.items() if word in text.split() for path in paths}
    return any(shapes[path] == shapes[members[0]] for path in alike - set(members))


def _find_opposites(said: Collection[str]) -> dict[str, str]:
    known = [pair for pair in weight_words()["opposites"] if all(word in said for word in pair)]
    return {word: f"half {place}" for place, word in enumerate(known[0])} if len(known) == 1 else {}
