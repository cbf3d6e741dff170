"""What became of one weight of a conversion, and how its numbers lie in the other network."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprobe.model.weight import Weight

MAPPED, DROPPED, KEPT, UNMAPPED, MISFIT, AMBIGUOUS = "mapped", "dropped", "kept", "unmapped", "shape", "ambiguous"
AS_IT_IS, RESHAPED, TRANSPOSED = "", "reshaped", "transposed"
_TRANSPOSED_CLASSES = ("Conv1D",)  # of transformers: a linear layer whose weight lies the other way round
_LINEAR_CLASSES = ("Dense", "Linear")


@dataclass(frozen=True, slots=True)
class Piece:
    """Which part of a weight that joins several: query, key and value in one matrix."""

    axis: int
    begin: int
    end: int
    is_of_source: bool
    """Is the source cut, or the target put together?"""

    @property
    def place(self) -> tuple[slice, ...]:
        return (*[slice(None)] * self.axis, slice(self.begin, self.end))


@dataclass(frozen=True, slots=True)
class WeightRow:
    """What became of one weight."""

    source: Weight | None
    target: Weight | None
    status: str
    """mapped; dropped: the other framework has no such thing; kept: the target's own value stays; unmapped; ambiguous:
    there is more than one place for it; shape: the names say that they belong together and the shapes that they do
    not."""
    rule: str = ""
    layout: str = AS_IT_IS
    note: str = ""
    """What else is to be said: what it rests on, the nearest name, why it is dropped."""
    choices: tuple[str, ...] = ()
    """Of an ambiguous one: names of the other side that it may belong to."""
    piece: Piece | None = None

    @property
    def is_bad(self) -> bool:
        return self.status in (UNMAPPED, MISFIT, AMBIGUOUS)


def find_layout(source: Weight, target: Weight) -> str | None:
    """How the numbers of one lie in the other; None: they do not fit."""
    if is_turned_by_class(source, target) and source.shape[::-1] == target.shape:
        return TRANSPOSED
    if source.shape == target.shape:
        return AS_IT_IS
    if plain_shape(source) == plain_shape(target) and len(source.shape) != len(target.shape):
        return RESHAPED
    return TRANSPOSED if len(source.shape) == 2 and source.shape[::-1] == target.shape else None


def is_turned_by_class(source: Weight, target: Weight) -> bool:
    """Do the classes of both layers say that one holds its matrix the other way round?"""
    kinds = source.kind, target.kind
    is_turned = any(kind in _TRANSPOSED_CLASSES for kind in kinds) and any(kind in _LINEAR_CLASSES for kind in kinds)
    return is_turned and len(source.shape) == 2


def is_outputs_first(weight: Weight) -> bool | None:
    """Of the matrix of a layer, by its class; None where that is not known."""
    if weight.kind in _TRANSPOSED_CLASSES:
        return False
    return True if weight.kind in _LINEAR_CLASSES else None


def is_turned_around(weight: Weight) -> bool:
    """Is it the matrix of a layer that has the inputs first?"""
    return weight.kind in _TRANSPOSED_CLASSES and len(weight.shape) == 2


def plain_shape(weight: Weight) -> tuple[int, ...]:
    """Without the dimension of 1 that the kernel of MindSpore's Conv1d has."""
    shape = weight.shape
    return (*shape[:2], *shape[3:]) if len(shape) == 4 and shape[2] == 1 and weight.leaf == "weight" else shape
