"""One record of a step: what was called, where, and its slots, without the raw JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tensorprobe.model.name import (
    BACKWARD,
    FORWARD,
    ApiName,
    Direction,
    ModuleName,
    ParametersGradName,
    module_stem,
    parse_name,
)
from tensorprobe.store.slot import Slot, TensorSlot

Kind = Literal["api", "module", "parameters_grad", "saved"]


@dataclass(slots=True, eq=False)
class Call:
    """One record: a call of an API or a module in one direction, the gradients of a module's parameters, or a save."""

    name: str
    """Its key in dump.json."""
    position: int
    """How many records were written before it: the order in which calls ended."""
    kind: Kind
    prefix: str
    """`Functional`, `Tensor`, `Module` …; empty for a save."""
    op: str
    """What was called: `linear`, `__getitem__`; the class of a module; the variable of a save."""
    index: int
    direction: str
    """forward, backward or recompute; empty for what has none."""
    path: str
    """Modules and their gradients: the module's own dotted path, empty for a root. Empty for all others."""
    module_path: str | None
    """The module around the call (for a module: itself); None when that is not known."""
    parent: str | None
    """The record of the module call that contains it; None at level L1 and for what no module contains."""
    slots: tuple[Slot, ...]
    caller: str | None = None
    """The part of the framework that made the call itself: such calls are kept out of the verdict."""
    failed: str | None = None
    """What the user's call raised."""
    note: str | None = None
    """What else must be known, such as "undefined memory"."""
    is_recomputed: bool = False
    """Does it repeat a forward call, for activation checkpointing?"""
    differs_from_forward: tuple[str, ...] = ()
    """The slots of a recomputed call that are not what they were in the forward."""
    generator: str | None = None
    """A digest of the random generator before a random call; None where the dump has none."""
    framework: str = ""
    """Whose words these are: `pytorch`, `mindspore`, `mindtorch`."""
    parts: tuple[Call, ...] = ()
    """The calls that it is made of, where one record stands for several: a layer's. They have no values."""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    _tensors: tuple[tuple[Slot, ...], list[TensorSlot]] | None = None
    """The slots of which `tensors` was made, and what it was: it is asked for again and again."""

    @property
    def tensors(self) -> list[TensorSlot]:
        """Not to be changed: all who ask are given the same list."""
        known = self._tensors
        if known is None or known[0] is not self.slots:
            known = self._tensors = self.slots, [slot for slot in self.slots if isinstance(slot, TensorSlot)]
        return known[1]

    @property
    def results(self) -> list[Slot]:
        """What the call computed; all that was saved, and all gradients of parameters."""
        return [slot for slot in self.slots if not slot.is_input]

    @property
    def is_named(self) -> bool:
        """Does its name follow a grammar that we know?"""
        return self.op != self.name

    @property
    def phase(self) -> Direction | None:
        """In which pass of the program it happened: what is recomputed is recomputed in the backward."""
        if not self.direction or not self.is_named:
            return None
        return FORWARD if self.direction == FORWARD else BACKWARD

    @property
    def told_path(self) -> str | None:
        """The module that its record names: the gradients of parameters name none."""
        return None if self.kind == "parameters_grad" else self.module_path

    @property
    def stem(self) -> str:
        """What its records in all directions begin with: `Functional.linear.5`, `Module.conv1.Conv2d`."""
        if self.kind in ("module", "parameters_grad"):
            return module_stem(self.prefix, self.path, self.op)
        return self.name.removesuffix(self.direction)[:-1] if self.phase else self.name

    def in_direction(self, direction: str) -> str:
        """The name of the same call in another direction."""
        if self.kind == "module":
            return f"{self.stem}.{direction}.{self.index}"
        return self.name.removesuffix(self.direction) + direction


def name_call(name: str) -> Call:
    """What the name alone says of a call. One that follows no grammar we know is what was called."""
    try:
        parsed = parse_name(name)
    except ValueError:
        return Call(name, 0, "api", "", name, 0, FORWARD, "", None, None, ())
    if isinstance(parsed, ApiName):
        return Call(name, 0, "api", parsed.prefix, parsed.name, parsed.index, parsed.direction, "", None, None, ())
    if isinstance(parsed, ModuleName):
        path, direction = parsed.path, parsed.direction
        return Call(name, 0, "module", parsed.prefix, parsed.class_name, parsed.index, direction, path, None, None, ())
    if isinstance(parsed, ParametersGradName):
        stem = parsed.prefix, parsed.class_name
        return Call(name, 0, "parameters_grad", *stem, 0, BACKWARD, parsed.path, None, None, ())
    return Call(name, 0, "saved", "", parsed.variable, parsed.index, "", "", None, None, ())
