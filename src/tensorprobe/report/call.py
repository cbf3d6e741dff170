"""One record as the reports see it: its slots and what is said about it, without the raw JSON."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprobe.model.name import ApiName, Direction, ModuleName, ParametersGradName, RecordName, parse_name
from tensorprobe.store.frame import describe_frame
from tensorprobe.store.reader import Record, SavedValue
from tensorprobe.store.slot import Slot, TensorSlot


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an API or a module, the gradients of parameters, or a saved value."""

    record: str
    name: RecordName | None
    """None when the key follows no grammar we know."""
    slots: tuple[Slot, ...]
    module_path: str | None = None
    failed: str | None = None
    caller: str | None = None
    is_recomputed: bool = False
    differs_from_forward: tuple[str, ...] = ()
    """The slots of a recomputed call that are not what they were in the forward."""
    note: str | None = None
    """What else must be known, such as "undefined memory"."""

    @property
    def direction(self) -> Direction | None:
        return direction_of(self.name)

    @property
    def tensors(self) -> tuple[TensorSlot, ...]:
        return tuple(slot for slot in self.slots if isinstance(slot, TensorSlot))

    @property
    def results(self) -> tuple[Slot, ...]:
        """What the call computed; all that was saved, and all gradients of parameters."""
        return tuple(slot for slot in self.slots if not slot.is_input)


def direction_of(name: RecordName | None) -> Direction | None:
    """In which pass of the program it happened: what is recomputed is recomputed in the backward."""
    if isinstance(name, (ApiName, ModuleName)):
        return "forward" if name.direction == "forward" else "backward"
    return "backward" if isinstance(name, ParametersGradName) else None


def call_from_record(record: Record) -> Call:
    """What the reports need of an entry of dump.json."""
    return Call(
        record=record.name,
        name=name_or_none(record.name),
        slots=tuple(record.slots()),
        module_path=record.module_path,
        failed=record.failed,
        caller=record.caller,
        is_recomputed=record.is_recomputed,
        differs_from_forward=record.differs_from_forward,
        note=record.note,
    )


def call_from_saved(saved: SavedValue) -> Call:
    """What the reports need of an entry of debug.json."""
    return Call(saved.name, name_or_none(saved.name), tuple(saved.slots()))


def name_or_none(record: str) -> RecordName | None:
    """The parts of a record's name, if it has the parts we know."""
    try:
        return parse_name(record)
    except ValueError:
        return None


def describe_location(frames: tuple[str, ...]) -> str | None:
    """`model.py:18 in forward: x = self.fc(x)`, from the innermost frame of a stack."""
    return describe_frame(frames[0]) if frames else None
