"""A run as compare sees it: its calls in the order in which they ended, each with its slots, in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from tensorprobe.compare.layer_word import layer_word
from tensorprobe.compare.signature import MINDSPORE
from tensorprobe.compare.vocabulary import common_op
from tensorprobe.model.name import LAYER_PREFIX, ApiName, DebugName, ModuleName, ParametersGradName, parse_name
from tensorprobe.store.reader import RankDump, Record, SavedValue
from tensorprobe.store.slot import Slot, TensorSlot

Kind = Literal["api", "module", "parameters_grad", "saved"]
FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
_FRAMEWORK_FILE = re.compile(
    r"^File [^,]*[/\\\\](?:site|dist)-packages[/\\\\](?:torch|torch_npu|mindspore|msadapter)[/\\\\]"
)


@dataclass(slots=True, eq=False)
class Call:
    """One record: a call of an API or a module in one direction, the gradients of a module's parameters, or a save."""

    name: str
    """Its key in dump.json."""
    position: int
    """Its place among all records of its run: the order in which calls ended."""
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
    note: str | None = None
    differs_from_forward: tuple[str, ...] = ()
    generator: str | None = None
    """A digest of the random generator before a random call; None where the dump has none."""
    framework: str = ""
    """Whose words these are: `pytorch`, `mindspore`, `mindtorch`."""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def word(self) -> str:
        """What was called, in the words that all frameworks share."""
        if self.prefix == LAYER_PREFIX:
            return layer_word(self.framework, self.op)
        return common_op(self.framework, self.kind, self.prefix, self.op)

    @property
    def tensors(self) -> list[TensorSlot]:
        return [slot for slot in self.slots if isinstance(slot, TensorSlot)]


def is_across_frameworks(reference: str, candidate: str) -> bool:
    """Are these two frameworks that have other words, and other code between the calls of a program?

    >>> is_across_frameworks("pytorch", "mindspore"), is_across_frameworks("pytorch", "mindtorch")
    (True, False)
    """
    return (reference == MINDSPORE) != (candidate == MINDSPORE) and bool(reference and candidate)


@dataclass(eq=False)
class Run:
    """One step of one process."""

    rank: RankDump
    calls: list[Call]
    by_name: dict[str, Call] = field(repr=False)

    @property
    def framework(self) -> str:
        return str(self.rank.header.get("framework", ""))

    @cached_property
    def has_flow(self) -> bool:
        """Does the dump say where values came from? msprobe's do not."""
        return any(slot.source for call in self.calls for slot in call.tensors)

    def location(self, call: Call) -> str | None:
        """Where it was called: the innermost line that is not of the framework itself."""
        frames = self.rank.stack(call.name)
        own = (frame for frame in frames if not _FRAMEWORK_FILE.search(frame))
        return next(own, frames[0] if frames else None)


def read_run(rank: RankDump) -> Run:
    """All records of one step of one process; what was saved by hand follows them."""
    parents = rank.parents
    framework = str(rank.header.get("framework", ""))
    calls = [_read_record(record, position, parents, framework) for position, record in enumerate(rank.records())]
    calls.extend(_read_saved(saved, position) for position, saved in enumerate(rank.saved_values(), len(calls)))
    return make_run(rank, calls)


def make_run(rank: RankDump, calls: Iterable[Call]) -> Run:
    """A run of calls that are already there."""
    listed = list(calls)
    return Run(rank, listed, {call.name: call for call in listed})


def _read_record(record: Record, position: int, parents: Mapping[str, str | None], framework: str = "") -> Call:
    kind, prefix, op, index, direction, path = _take_apart(record.name)
    generator = record.fields.get("generator")
    return Call(
        name=record.name,
        position=position,
        kind=kind,
        prefix=prefix,
        op=op,
        index=index,
        direction=direction,
        path=path,
        module_path=path if kind == "parameters_grad" else record.module_path,
        parent=parents.get(record.name),
        slots=tuple(record.slots()),
        caller=record.caller,
        failed=record.failed,
        note=record.note,
        differs_from_forward=record.differs_from_forward,
        generator=generator if isinstance(generator, str) else None,
        framework=framework,
    )


def _read_saved(saved: SavedValue, position: int) -> Call:
    _, prefix, op, index, direction, path = _take_apart(saved.name)
    return Call(saved.name, position, "saved", prefix, op, index, direction, path, None, None, tuple(saved.slots()))


def _take_apart(name: str) -> tuple[Kind, str, str, int, str, str]:
    try:
        parsed = parse_name(name)
    except ValueError:
        return "api", "", name, 0, FORWARD, ""
    if isinstance(parsed, ApiName):
        return "api", parsed.prefix, parsed.name, parsed.index, parsed.direction, ""
    if isinstance(parsed, ModuleName):
        return "module", parsed.prefix, parsed.class_name, parsed.index, parsed.direction, parsed.path
    if isinstance(parsed, ParametersGradName):
        return "parameters_grad", parsed.prefix, parsed.class_name, 0, BACKWARD, parsed.path
    assert isinstance(parsed, DebugName)
    return "saved", "", parsed.variable, parsed.index, "", ""
