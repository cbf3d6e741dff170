"""Weights that are left, and where each could belong."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from tensorprobe.migrator.weight_layer import Layer
from tensorprobe.migrator.weight_side import KNOWN_LEAVES
from tensorprobe.migrator.weight_word import Path
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import plain_shape


def find_choices(layers: Sequence[Layer], others: Sequence[Layer]) -> dict[str, tuple[Weight, ...]]:
    """For each weight, those of the other side that it may belong to, by name."""
    by_signature: dict[Hashable, list[Layer]] = {}
    """And by signature and numbers."""
    by_shape: dict[tuple[int, ...], list[Layer]] = {}
    for other in others:
        for key in (other.signature, *{(other.signature, meaning.numbers) for meaning in other.meanings}):
            by_signature.setdefault(key, []).append(other)
        for shape in {plain_shape(weight) for weight in other.weights.values()}:
            by_shape.setdefault(shape, []).append(other)
    found: dict[str, tuple[Weight, ...]] = {}
    for layer in layers:
        alike = _in_same_place(layer, by_signature) or by_signature.get(layer.signature, [])
        for leaf, weight in layer.weights.items():
            shape = plain_shape(weight)
            fitting = [other.weights[leaf] for other in alike] or [
                against for other in by_shape.get(shape, ()) for against in _fitting(layer, leaf, other)
            ]
            if fitting:
                found[weight.name] = tuple(sorted(fitting, key=lambda one: one.name))
    return found


def _in_same_place(layer: Layer, others: Mapping[Hashable, list[Layer]]) -> list[Layer]:
    """Those with the same numbers: what belongs to the second block."""
    found: dict[Path, Layer] = {}
    for meaning in layer.meanings:
        found.update((other.path, other) for other in others.get((layer.signature, meaning.numbers), ()))
    return list(found.values())


def _fitting(layer: Layer, leaf: str, other: Layer) -> Iterable[Weight]:
    shape = plain_shape(layer.weights[leaf])
    for name, weight in other.weights.items():
        if plain_shape(weight) == shape and may_be_one(layer.weights, leaf, other.weights, name):
            yield weight


def may_be_one(layer: Mapping[str, Weight], leaf: str, other: Mapping[str, Weight], name: str) -> bool:
    """May a weight of one layer belong to one of the other? A bias is no weight, and the rest of both has to fit."""
    if leaf != name and (leaf in KNOWN_LEAVES or name in KNOWN_LEAVES):
        return False
    return all(plain_shape(layer[one]) == plain_shape(other[one]) for one in layer.keys() & other.keys())
