"""Layers whose names differ, paired where there is one explanation only.

    alike   they hold the same weights in the same shapes, and their paths say the same: in full; but for a level that
            one side lacks; or but for words that all layers in question have
    shape   each is the only one that is left with these weights in these shapes

Nothing looks at the order of the layers. What could belong to several others stays without a partner.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tensorprobe.migrator.weight_word import Meaning, Path, split_words
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import is_turned_around, plain_shape

ALIKE, BY_SHAPE = "alike", "shape"
Signature = tuple[tuple[str, tuple[int, ...]], ...]
_MAX_TAILS = 500
"""Of layers with one signature and one name, whose paths are held against each other one by one."""


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """A layer, or some of its weights, by PyTorch's names for them."""

    path: Path
    meanings: tuple[Meaning, ...]
    """What its path says, with its siblings and without them."""
    weights: dict[str, Weight]
    signature: Signature
    """Equal for layers that may belong together."""


Pair = tuple[str, Layer, Layer]
"""By which rule, and the two layers."""


def sign(weights: dict[str, Weight]) -> Signature:
    """The names and shapes of a layer's weights."""
    bias = weights.get("bias")
    return tuple(sorted((leaf, _shape(weight, bias)) for leaf, weight in weights.items()))


def _shape(weight: Weight, bias: Weight | None) -> tuple[int, ...]:
    """With the outputs first, where the class or the bias says that they come last."""
    shape = plain_shape(weight)
    if len(shape) != 2 or weight.leaf != "weight":
        return shape
    is_last = bias is not None and bias.shape == shape[1:] and shape[0] != shape[1]
    return shape[::-1] if is_last or is_turned_around(weight) else shape


def match_layers(
    source: Sequence[Layer], target: Sequence[Layer], may_pair: Callable[[Layer, Layer], bool]
) -> Iterator[Pair]:
    """Every pair that has no other explanation; `may_pair` refuses what cannot be one."""
    left = [list(source), list(target)]
    while all(left):
        found: list[Pair] = []
        for find in _WAYS:
            found = [pair for pair in find(*left) if may_pair(pair[1], pair[2])]
            if found:
                break
        if not found:
            return
        yield from found
        taken = {id(layer) for _, *pair in found for layer in pair}
        left = [[layer for layer in side if id(layer) not in taken] for side in left]


def _pair_in_full(which: int, source: list[Layer], target: list[Layer]) -> Iterator[Pair]:
    """Their paths say the same."""
    for layer, other in _unique_pairs(source, target, lambda layer: (layer.signature, layer.meanings[which])):
        if layer.meanings[which].words or layer.meanings[which].numbers:
            yield ALIKE, layer, other


def _pair_tails(source: list[Layer], target: list[Layer]) -> Iterator[Pair]:
    """The path of one is that of the other without some of its levels: `model.decoder.lm_head`, `lm_head`."""
    for layers, others in _groups(source, target, lambda layer: (layer.signature, _last_words(layer.path))):
        if max(len(layers), len(others)) > _MAX_TAILS or not _last_words(layers[0].path):
            continue
        paths, other_paths = ([[split_words(part) for part in one.path] for one in side] for side in (layers, others))
        fits = [[_is_tail(path, other) for other in other_paths] for path in paths]
        for place, row in enumerate(fits):
            if sum(row) == 1 and sum(other[row.index(True)] for other in fits) == 1:
                yield ALIKE, layers[place], others[row.index(True)]


def _last_words(path: Path) -> tuple[str, ...]:
    return split_words(path[-1]) if path else ()


def _is_tail(path: list[tuple[str, ...]], other: list[tuple[str, ...]]) -> bool:
    short, long = sorted((path, other), key=len)
    rest = iter(long)
    return all(part in rest for part in short)


def _pair_told_apart(which: int, source: list[Layer], target: list[Layer]) -> Iterator[Pair]:
    """Their paths say the same but for what all layers in question say."""
    for layers, others in _groups(source, target, lambda layer: layer.signature):
        said = [[layer.meanings[which] for layer in side] for side in (layers, others)]
        heard = [{word for meaning in side for word in meaning.words} for side in said]
        told = _tell_apart(layers, said[0], heard[1]) | _tell_apart(others, said[1], heard[0])
        for group in _groups(layers, others, lambda layer, told=told: told[id(layer)].sizes):  # type: ignore[misc]
            is_alone = not any(told[id(layer)].words for side in group for layer in side)
            for layer, other in _unique_pairs(*group, lambda layer, told=told: told[id(layer)]):  # type: ignore[misc]
                if told[id(layer)].words or is_alone:
                    yield ALIKE if told[id(layer)].words else BY_SHAPE, layer, other


def _tell_apart(layers: list[Layer], said: list[Meaning], heard_there: set[str]) -> dict[int, Meaning]:
    """What each says, without the words and numbers that all have; words by which the other side tells layers apart
    stay."""
    numbers = [meaning.numbers for meaning in said]
    if len(set(map(len, numbers))) == 1:
        kept = [place for place, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
        numbers = [tuple(one[place] for place in kept) for one in numbers]
    told = [Meaning(meaning.words, own) for meaning, own in zip(said, numbers, strict=True)]
    common: dict[tuple[int, ...], frozenset[str]] = {}
    for meaning in told:
        common[meaning.sizes] = common.get(meaning.sizes, meaning.words) & meaning.words
    return {
        id(layer): Meaning(meaning.words - (common[meaning.sizes] - heard_there), meaning.numbers)
        for layer, meaning in zip(layers, told, strict=True)
    }


def _pair_only(source: list[Layer], target: list[Layer]) -> Iterator[Pair]:
    for layer, other in _unique_pairs(source, target, lambda layer: layer.signature):
        yield BY_SHAPE, layer, other


def _unique_pairs(
    source: list[Layer], target: list[Layer], key: Callable[[Layer], Hashable]
) -> Iterator[tuple[Layer, Layer]]:
    for layers, others in _groups(source, target, key):
        if len(layers) == len(others) == 1:
            yield layers[0], others[0]


def _groups(
    source: list[Layer], target: list[Layer], key: Callable[[Layer], Hashable]
) -> Iterator[tuple[list[Layer], list[Layer]]]:
    """Layers of both sides that have the same key."""
    sides: list[dict[Hashable, list[Layer]]] = [{}, {}]
    for found, side in zip(sides, (source, target), strict=True):
        for layer in side:
            found.setdefault(key(layer), []).append(layer)
    for known, layers in sides[0].items():
        if known in sides[1]:
            yield layers, sides[1][known]


_WAYS: tuple[Callable[[list[Layer], list[Layer]], Iterator[Pair]], ...] = (
    partial(_pair_in_full, 0),
    partial(_pair_in_full, 1),
    _pair_tails,
    partial(_pair_told_apart, 0),
    partial(_pair_told_apart, 1),
    _pair_only,
)
"""The strictest first; each is tried again when another has left fewer layers."""
