"""A step with the truth of every value, as plain data: what two runs are held against each other by.

A value is one content of one tensor. A call takes values and makes values; what no call made is a leaf. No framework is
needed to look at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tensorprobe.replay.result import Coverage

Array = np.ndarray[Any, Any]
LeafKey = str | int
"""The name of a parameter, the number of a tensor, or the name of a file."""
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
UNITS |= {"complex128": UNITS["float64"], "complex64": UNITS["float32"]}
"""What one rounding does at most, relative to the number."""
LEAST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The smallest number that is not zero: none is rounded by more, however small it is."""


@dataclass(frozen=True)
class Update:
    """A parameter was changed by a call that was not executed again."""

    parameter: str
    by: str


@dataclass(eq=False)
class TrueValue:
    """One content of one tensor."""

    number: int
    array: Array
    """Its truth; whole numbers and truth values as recorded."""
    dtype: str
    """As recorded: `bfloat16`."""
    maker: str | None
    """The call that made it; None for a leaf."""
    slot: str
    """The place in the record where it was seen first."""
    parameter: str | None = None
    """The dotted name of the parameter that it is."""
    key: LeafKey | None = None
    """What a leaf is known by, whoever looks at it first."""
    updated: Update | None = None
    """What became of a parameter, of a leaf that it is afterwards."""
    is_pinned: bool = False
    """It is what was recorded: its maker could not be executed again, drew it at random, or was not seen."""
    is_root: bool = False
    """Gradients were asked of it."""
    is_trained: bool = False
    """A parameter, or something else that gradients were asked for."""
    is_gradient: bool = False
    """What a backward pass left for a leaf. No call made it."""
    is_cleared: bool = False
    """The gradient that an earlier pass left for it was cleared before anybody took it."""
    is_frozen: bool = False
    """Has the program said that a parameter gets no gradient?"""
    is_followed: bool = False
    """Gradients go through it, or to it."""
    gradient: Array | None = None
    """Of a leaf: the sum over all backward passes."""
    is_gradient_lost: bool = False
    """It got a gradient from calls that could not be executed again, and its content was not recorded."""

    @property
    def is_leaf(self) -> bool:
        return self.maker is None

    @property
    def is_floating(self) -> bool:
        return bool(self.array.dtype.kind in "fc")

    @cached_property
    def ordered(self) -> Array:
        """Its numbers by their size, for who looks for some among them."""
        return np.sort(self.array, axis=None)


@dataclass(eq=False)
class TrueCall:
    """One call of an API, with the values that it takes and makes."""

    name: str
    position: int
    """How many calls were made before it."""
    framework: str
    prefix: str
    op: str
    module_path: str | None
    caller: str | None
    """The part of the framework that made it."""
    inputs: dict[str, int]
    """Values by their places."""
    outputs: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    """What is no tensor, by its place."""
    arriving: dict[str, Array] = field(default_factory=dict)
    """The gradients of its results, by their places."""
    departing: dict[str, Array] = field(default_factory=dict)
    """The gradients that it gives back to what went in."""
    gradient_sizes: dict[str, float] = field(default_factory=dict)
    """How large both are, in a step with autograd Functions."""
    is_random: bool = False
    in_autocast: bool = False
    """It was made in a region of autocast, which has it computed in a coarser dtype."""
    is_undefined: bool = False
    """It gives memory as it is, to be written to."""
    inside: str | None = None
    """The recorded call that it is a part of, where that was taken apart."""

    @property
    def backward_name(self) -> str:
        return self.name.removesuffix("forward") + "backward"


@dataclass(eq=False)
class TrueStep:
    """One step of one process."""

    name: str
    calls: dict[str, TrueCall]
    values: list[TrueValue]
    coverage: Coverage
    rewritten: tuple[str, ...] = ()
    """Parameters that change on the way, and no recorded call writes to them: a training step after the first one."""

    is_transformed: bool = False
    """It asks for gradients inside `torch.func`, of tensors that have no content."""
    loss_scale: float = 1.0
    """What the loss is multiplied by, and the gradients of leaves here are not."""

    def take_back(self, loss_scale: float) -> None:
        self.loss_scale = loss_scale
        for value in self.leaves if loss_scale != 1 else ():
            value.gradient = None if value.gradient is None else value.gradient / loss_scale

    @cached_property
    def users(self) -> Mapping[int, list[TrueCall]]:
        """The calls that take each value."""
        found: dict[int, list[TrueCall]] = {}
        for call in self.calls.values():
            for number in dict.fromkeys(call.inputs.values()):
                found.setdefault(number, []).append(call)
        return found

    @property
    def leaves(self) -> Iterator[TrueValue]:
        return (value for value in self.values if value.is_leaf)

    @cached_property
    def roots(self) -> list[TrueValue]:
        """The values from which gradients were asked for: the loss. Where there is a number among them, the others are
        results that got their gradient from a call that nobody saw."""
        found = [value for value in self.values if value.is_root]
        return [value for value in found if value.array.size == 1] or found

    @cached_property
    def updates_unseen(self) -> bool:
        """Is its optimizer one compiled call?"""
        return any(call.prefix == "Jit" and call.caller is not None for call in self.calls.values())

    @cached_property
    def coarseness(self) -> float:
        """How exact it is: the unit of rounding of recorded results that others are computed from; 0 where all of them
        were computed again. What was drawn at random is data."""
        taken = (value for value in self.values if self.is_taken_as_recorded(value) and self.leads_on(value))
        return max((UNITS.get(value.dtype, 0.0) for value in taken), default=0.0)

    @cached_property
    def gradient_rounding(self) -> dict[int, float]:
        """The size of the rounding in gradients that backwards of Functions gave back, by the values that they reach.
        What passes a gradient on passes its share of this on."""
        found: dict[int, float] = {}
        for name, slots in self.coverage.own_backwards.items():
            for slot, rounding in slots.items():
                number = self.calls[name].inputs.get(slot)
                if rounding and number is not None:
                    found[number] = found.get(number, 0.0) + rounding
        for call in sorted(self.calls.values(), key=lambda call: -call.position) if found else ():
            for slot, made in call.outputs.items():
                for place, number in call.inputs.items() if made in found else ():
                    if place in call.gradient_sizes and number != made:
                        size = call.gradient_sizes.get(slot, 0.0)
                        share = call.gradient_sizes[place] / size if size else 1.0
                        found[number] = found.get(number, 0.0) + share * found[made]
        return found

    def gradient_of(self, value: TrueValue) -> Array | None:
        """Of a result: what arrives at it; of a leaf: all that reaches it."""
        if value.is_leaf:
            return value.gradient
        maker = self.maker(value)
        if maker is None:
            return None
        slots = (slot for slot, number in maker.outputs.items() if number == value.number)
        return next((maker.arriving.get(slot) for slot in slots), None)

    @property
    def is_bound(self) -> bool:
        """Does it hold for these parameters alone? What was recorded does not move with them."""
        return bool(self.coarseness or self.coverage.own_backwards)

    def is_taken_as_recorded(self, value: TrueValue) -> bool:
        """Is it a number of a call that could not be executed again, or was not seen, with the rounding that it was
        recorded with?"""
        if not value.is_pinned or not value.is_floating:
            return False
        maker = self.maker(value)
        return maker is None or not maker.is_random

    def leads_on(self, value: TrueValue) -> bool:
        """Is another floating value made of it? A choice is an end."""
        made = (number for call in self.users.get(value.number, ()) for number in call.outputs.values())
        return any(self.values[number].is_floating for number in made)

    def leads_to_loss(self, value: TrueValue) -> bool:
        """Is the loss, where there is one, computed from it? What an optimizer takes does not lead there."""
        return value.number in self._before_loss if self.roots else self.leads_on(value)

    @cached_property
    def _before_loss(self) -> Set[int]:
        roots = {value.number for value in self.roots}
        return roots | self.find_before(roots)

    def is_test(self, call: TrueCall) -> bool:
        """Does it only tell true from false, and no number depends on that? So arguments are checked."""
        made = [self.values[number] for number in call.outputs.values()]
        return bool(made) and all(one.array.dtype.kind == "b" and one.number not in self._leading for one in made)

    def is_end(self, value: TrueValue) -> bool:
        """Is it a result of the step: a number that no other number is computed from? A choice that is made of it may
        be all that the program asks for, unless numbers depend on that choice. Where there is a loss, what comes beside
        something that is taken is none (`topk(x)[1]`, the last state of an LSTM whose outputs are used). Memory that is
        yet to be written to is none, nor is what was written into a part of something that is taken as a whole."""
        maker = self.maker(value)
        is_result = value.is_floating and not value.is_root and (maker is None or not maker.is_undefined)
        made = maker.outputs.items() if maker is not None and self.roots else ()
        returned = [number for place, number in made if place.startswith("output")]  # and not what is written to
        beside = returned if value.number in returned else []
        views = [one.number for one in self.find_views(value)]
        return is_result and self._leading.isdisjoint([value.number, *beside, *views])

    @cached_property
    def _leading(self) -> Set[int]:
        return self.find_before({value.number for value in self.values if value.is_floating})

    def find_before(self, numbers: Set[int]) -> Set[int]:
        """The values that these are computed from. What a call passes on as it is (a dropout that is off) is not
        computed from itself."""
        found: set[int] = set()
        for made, given in self._backwards:
            if not numbers.isdisjoint(made) or not found.isdisjoint(made):
                found.update(given)
        return found

    @cached_property
    def _backwards(self) -> list[tuple[Set[int], Set[int]]]:
        """What each call makes, also in views that no call took, and what else it is given, from the last call to the
        first."""
        calls = sorted(self.calls.values(), key=lambda call: -call.position)
        views = {name: {one.number for one in made} for name, made in self._made_by.items()}
        pairs = ((views.get(call.name, set()) | {*call.outputs.values()}, call.inputs.values()) for call in calls)
        return [(frozenset(made), frozenset(given) - made) for made, given in pairs]

    def has_same_calls(self, other: TrueStep) -> bool:
        """Are both one program: the same calls with the same arguments, each of the same values?"""
        return list(self.calls) == list(other.calls) and all(
            (call.framework, call.inputs, call.outputs, call.arguments)
            == (twin.framework, twin.inputs, twin.outputs, twin.arguments)
            for call, twin in zip(self.calls.values(), other.calls.values(), strict=True)
        )

    def find_views(self, value: TrueValue) -> list[TrueValue]:
        """What shows the result of a call in another way, and no recorded call made: `.T`."""
        maker = self.maker(value)
        if maker is None or len(maker.outputs) != 1 or value.number not in maker.outputs.values():
            return []
        return [one for one in self._made_by.get(maker.name, []) if one is not value]

    @cached_property
    def _made_by(self) -> dict[str, list[TrueValue]]:
        found: dict[str, list[TrueValue]] = {}
        for value in self.values:
            if value.maker is not None:
                found.setdefault(value.maker, []).append(value)
        return found

    def only_moves(self, call: TrueCall) -> bool:
        """Are all numbers that come out of a call among those that go in?"""
        if call.name not in self._moving:
            given, made = (
                [self.values[number].array for number in places.values() if self.values[number].is_floating]
                for places in (call.inputs, call.outputs)
            )
            self._moving[call.name] = bool(given and made) and _are_among(made, given)
        return self._moving[call.name]

    @cached_property
    def _moving(self) -> dict[str, bool]:
        return {}

    def name_of(self, leaf: TrueValue) -> str:
        """What a leaf is called in every step of a program: a view of a parameter has no name of its own."""
        users = self.users.get(leaf.number, ())
        return leaf.parameter or (f"{leaf.slot} of {users[0].name}" if users else leaf.slot)

    def maker(self, value: TrueValue) -> TrueCall | None:
        return self.calls.get(value.maker) if value.maker is not None else None


def _are_among(made: list[Array], given: list[Array]) -> bool:
    """Are all these numbers among those? What computes is mostly told by its first number; only then all are sorted."""
    known = np.concatenate([one.reshape(-1) for one in given])
    if not all((known == one.flat[0]).any() for one in made if one.size):
        return False
    known.sort()
    wanted = [np.unique(one) for one in made]
    places = [np.searchsorted(known, one).clip(max=known.size - 1) for one in wanted]
    return all(np.array_equal(known[place], one) for one, place in zip(wanted, places, strict=True))
