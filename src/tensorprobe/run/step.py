"""One step of one process, read: the only place where records become calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from tensorprobe.model.name import FORWARD, LAYER_PREFIX
from tensorprobe.run.call import Call, name_call
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.reader import RankDump, Record

_FRAMEWORK_FILE = re.compile(
    r"^File [^,]*[/\\\\](?:site|dist)-packages[/\\\\](?:torch|torch_npu|mindspore|msadapter)[/\\\\]"
)
_RARE_TEXTS = ("caller", "failed", "note", "generator")
_LIBRARY_FILE = re.compile(r"^File [^,]*[/\\\\](?:site|dist)-packages[/\\\\]")


@dataclass(eq=False)
class Run:
    """One step of one process: its calls in the order in which they ended."""

    rank: RankDump
    calls: list[Call]
    by_name: dict[str, Call] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.by_name = {call.name: call for call in self.calls}

    @property
    def framework(self) -> str:
        return _read_framework(self.rank)

    @cached_property
    def has_flow(self) -> bool:
        """Does the dump say where values came from? msprobe's do not."""
        return any(slot.source for call in self.calls for slot in call.tensors)

    def context_path(self, call: Call) -> str | None:
        """The module in which a call was made, by its own word or by that of the record that contains it."""
        if call.kind in ("module", "parameters_grad"):
            return call.path
        if call.module_path is not None or call.parent is None:
            return call.module_path
        parent = self.by_name.get(call.parent)
        if parent is not None:
            return parent.path
        named = name_call(call.parent)
        return named.path if named.kind == "module" else None

    def location(self, call: Call) -> str | None:
        """Where it was called: the innermost line that is not of the framework itself."""
        return _find_location(self.rank.stack(call.name))

    def outer_location(self, call: Call) -> str | None:
        """Where the user's own program led to it: the innermost line outside of installed libraries; None where
        `location` is that line, or there is none."""
        location = self.location(call)
        own = (frame for frame in self.rank.stack(call.name) if not _LIBRARY_FILE.search(frame))
        found = next(own, None)
        return None if found == location else found

    def describe_lines(self, call: Call, forward: Call | None) -> tuple[str, ...]:
        """Its line, or that of its forward call, and the line of the user's program where it is in a library."""
        for one in (call, forward):
            location = self.location(one) if one is not None else None
            if one is not None and location:
                outer = self.outer_location(one)
                return (describe_frame(location), *([describe_frame(outer)] if outer else []))
        return ()


@lru_cache(maxsize=4096)  # many calls share a stack
def _find_location(frames: tuple[str, ...]) -> str | None:
    own = (frame for frame in frames if not _FRAMEWORK_FILE.search(frame))
    return next(own, frames[0] if frames else None)


LINE_WORDS = ("line", "called from")


def word_lines(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines of both sides, in words; once where both have the same."""
    if len(lines) == 2 and len(set(map(tuple, lines.values()))) == 1:
        lines = {"": next(iter(lines.values()))}
    return [
        f"{side} {word}: {line}".lstrip()
        for side, found in lines.items()
        for word, line in zip(LINE_WORDS, found, strict=False)
    ]


def read_run(rank: RankDump, on_record: Callable[[], None] = lambda: None) -> Run:
    """All records of one step of one process; what was saved by hand follows them. `on_record` is told of each."""
    calls = []
    for call, _ in read_calls(rank):
        calls.append(call)
        on_record()
    first = calls[-1].position + 1 if calls else 0
    for position, saved in enumerate(rank.saved_values(), first):
        calls.append(replace(name_call(saved.name), position=position, kind="saved", slots=tuple(saved.slots())))
    return Run(rank, calls)


def read_calls(rank: RankDump) -> Iterator[tuple[Call, Record]]:
    """The calls of a dump.json, each with its record: one record is in memory at a time."""
    framework, parents = _read_framework(rank), rank.parents
    for number, record in enumerate(rank.records()):
        place = rank.place(record.name)
        yield make_call(record, number if place is None else place, parents, framework), record


def make_call(record: Record, position: int, parents: Mapping[str, str | None], framework: str = "") -> Call:
    """One record as a call. It may come from anyone: a field of an unexpected type is taken as absent."""
    call, fields = name_call(record.name), record.fields
    differing = fields.get("differs_from_forward")
    call.position = position
    call.parent = parents.get(record.name)
    call.framework = framework
    call.slots = tuple(record.slots())
    call.module_path = call.path if call.kind == "parameters_grad" else _text(fields, "module_path")
    for name in _RARE_TEXTS:
        if name in fields:
            setattr(call, name, _text(fields, name))
    call.is_recomputed = fields.get("recomputed") is True
    call.differs_from_forward = tuple(map(str, differing)) if isinstance(differing, list) else ()
    if call.prefix == LAYER_PREFIX:
        call.parts = tuple(_read_part(call, number, part) for number, part in enumerate(part_fields(fields)))
    return call


def part_fields(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the record of a layer says of the calls that it is made of."""
    listed = fields.get("calls")
    return [one for one in listed if _part_name(one)[1]] if isinstance(listed, list) else []


def _read_part(whole: Call, number: int, fields: dict[str, Any]) -> Call:
    record = Record(f"{whole.name}.{number}", fields)
    call = Call(record.name, whole.position, "api", *_part_name(fields), number, FORWARD, "", None, None, ())
    call.slots = tuple(record.slots())
    call.framework = whole.framework
    return call


def _part_name(fields: Any) -> tuple[str, str]:
    """What was called, without a counter: `Functional.linear`."""
    name = fields.get("name") if isinstance(fields, dict) else None
    prefix, _, op = name.partition(".") if isinstance(name, str) else ("", "", "")
    return prefix, op


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    found = fields.get(name)
    return found if type(found) is str else None


def _read_framework(rank: RankDump) -> str:
    return str(rank.header.get("framework") or "")
