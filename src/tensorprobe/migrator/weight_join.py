"""Layers that one network holds in one matrix and the other in several: query, key and value.

Which is which is said by names. That the parts of the matrix lie one after the other, and not head by head, names say
of few: `in_proj_weight` of MultiheadAttention, and `c_attn`. Of all others both are in use, in the same shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.migrator.weight_layer import Layer, match_layers
from tensorprobe.migrator.weight_word import Naming, Path, split_words, weight_words
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import (
    AS_IT_IS,
    MAPPED,
    TRANSPOSED,
    Piece,
    WeightRow,
    is_outputs_first,
    is_turned_around,
)

_LEAVES = {"in_proj_weight": "weight", "in_proj_bias": "bias"}


@dataclass(frozen=True, eq=False, slots=True)
class Joint:
    """One weight of one side, and the weights of the other that it holds."""

    whole: Weight
    parts: tuple[Weight, ...]
    is_source_whole: bool
    is_in_blocks: bool
    """Is it certain that the parts lie one after the other?"""

    @property
    def sources(self) -> tuple[Weight, ...]:
        return (self.whole,) if self.is_source_whole else self.parts

    @property
    def targets(self) -> tuple[Weight, ...]:
        return self.parts if self.is_source_whole else (self.whole,)


def find_joints(source: Sequence[Layer], target: Sequence[Layer], namings: tuple[Naming, Naming]) -> Iterator[Joint]:
    """Layers of both sides that hold the same, once in one and once in several."""
    for kind in weight_words()["joined"]:
        for layers, others, naming, other_naming, is_source_whole in (
            (source, target, *namings, True),
            (target, source, *namings[::-1], False),
        ):
            wholes = list(_find_wholes(layers, kind["names"], naming))
            sets = list(_find_sets(others, kind["parts"], other_naming))
            for _, whole, parts in match_layers(wholes, sets, lambda *_: True):
                yield from _join(whole, parts, kind, is_source_whole)


def _join(whole: Layer, parts: Layer, kind: dict[str, list[str]], is_source_whole: bool) -> Iterator[Joint]:
    for leaf, weight in whole.weights.items():
        listed = tuple(parts.weights[f"{part}.{leaf}"] for part in kind["parts"])
        name = weight.leaf if weight.leaf in _LEAVES else weight.path.rpartition(".")[2].lower()
        is_in_blocks = any(name.startswith(known) for known in kind["in_blocks"])
        yield Joint(weight, listed, is_source_whole, is_in_blocks)


def _find_wholes(layers: Sequence[Layer], names: list[str], naming: Naming) -> Iterator[Layer]:
    for layer in layers:
        own = {_LEAVES[leaf]: weight for leaf, weight in layer.weights.items() if leaf in _LEAVES}
        if own and "in_proj" in names:
            yield _make(layer.path, naming, own, _whole_shapes(own))
        elif layer.path and layer.path[-1].lower() in names:
            yield _make(layer.path[:-1], naming, layer.weights, _whole_shapes(layer.weights))


def _find_sets(layers: Sequence[Layer], parts: list[str], naming: Naming) -> Iterator[Layer]:
    """Siblings that are called query, key and value."""
    below: dict[Path, dict[str, list[Layer]]] = {}
    neutral = set(weight_words()["neutral"])
    for layer in layers:
        said = set(split_words(layer.path[-1])) - neutral if layer.path else set()
        if len(said) == 1:
            below.setdefault(layer.path[:-1], {}).setdefault(said.pop(), []).append(layer)
    for path, found in below.items():
        if any(len(found.get(part, ())) != 1 for part in parts):
            continue
        listed = [found[part][0] for part in parts]
        if len({frozenset(layer.weights) for layer in listed}) == 1:
            named = zip(parts, listed, strict=True)
            weights = {f"{part}.{leaf}": weight for part, layer in named for leaf, weight in layer.weights.items()}
            shapes = {leaf: _sum_shape([layer.weights[leaf] for layer in listed]) for leaf in listed[0].weights}
            yield _make(path, naming, weights, shapes)


def _make(path: Path, naming: Naming, weights: dict[str, Weight], shapes: dict[str, tuple[int, ...]]) -> Layer:
    meanings = naming.meaning(path), naming.plain_meaning(path)
    return Layer(path, meanings, weights, tuple(sorted(shapes.items())))


def _whole_shapes(weights: dict[str, Weight]) -> dict[str, tuple[int, ...]]:
    """With the outputs first: as many as the bias has, else more than the inputs."""
    bias = weights.get("bias")
    shapes = {}
    for leaf, weight in weights.items():
        shape = weight.shape
        is_last = len(shape) == 2 and (shape[1:] == bias.shape if bias is not None else shape[1] > shape[0])
        shapes[leaf] = shape[::-1] if is_last and shape[0] != shape[1] else shape
    return shapes


def _sum_shape(parts: list[Weight]) -> tuple[int, ...]:
    shapes = [part.shape[::-1] if is_turned_around(part) else part.shape for part in parts]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if all(shapes) else ()


def make_rows(joint: Joint, rule: str) -> list[WeightRow] | None:
    """The parts one after the other; None where the shapes do not say how."""
    whole, parts = joint.whole, joint.parts
    if len({part.dtype for part in parts}) != 1:
        return None
    for axis in range(min(len(whole.shape), 2)):
        turned = _turn(whole, parts, axis)
        if turned is None:
            continue
        rows, begin = [], 0
        for part in parts:
            end = begin + (part.shape[::-1] if turned else part.shape)[axis]
            piece = Piece(axis, begin, end, joint.is_source_whole)
            pair = (whole, part) if joint.is_source_whole else (part, whole)
            rows.append(WeightRow(*pair, MAPPED, rule, TRANSPOSED if turned else AS_IT_IS, piece=piece))
            begin = end
        return rows
    return None


def _turn(whole: Weight, parts: Sequence[Weight], axis: int) -> bool | None:
    """Are the parts turned to lie along this axis of the whole? None: they do not lie along it."""
    fits = []
    for is_turned in (False, True):
        shapes = [part.shape[::-1] if is_turned else part.shape for part in parts]
        joined = [list(shape) for shape in shapes if len(shape) == len(whole.shape)]
        if len(joined) == len(parts) and (len(whole.shape) == 2 or not is_turned):
            total = sum(shape[axis] for shape in joined)
            rest = {tuple(shape[:axis] + shape[axis + 1 :]) for shape in joined}
            if rest == {(*whole.shape[:axis], *whole.shape[axis + 1 :])} and total == whole.shape[axis]:
                fits.append(is_turned)
    if len(fits) < 2:
        return fits[0] if fits else None
    orders = {is_outputs_first(part) for part in parts}  # square: only the classes of the layers say how they lie
    if len(orders) != 1 or (axis == 1 and None in orders):
        return None
    return (axis == 1) == (orders.pop() is not False)
