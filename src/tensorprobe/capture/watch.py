"""`on_nonfinite`: the first call that produces NaN or Inf. Its tensors are stored, it is named, and the program
goes on or stops.

NaN counts wherever it is met first; Inf only where it comes out of a call that was given none, neither in a tensor nor
as a number: masks of -Inf are sound, and common. To know in time, what a device computed is fetched after every call.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from typing import Any

from tensorprobe.capture.describe import Describer, Listener
from tensorprobe.capture.framework import TensorReader
from tensorprobe.capture.recompute import is_same
from tensorprobe.capture.stack import Stack
from tensorprobe.config.capture_config import OnNonfinite
from tensorprobe.errors import NonFiniteError
from tensorprobe.model.name import PARAMETERS_GRAD
from tensorprobe.model.record import TensorLeaf
from tensorprobe.model.undefined import is_undefined

logger = logging.getLogger("tensorprobe")

_CHANGED = "changed by the call before it could be stored"
_IN_PLACE_OPERATOR = re.compile(
    r"__(setitem|i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift|matmul))__"
)


@dataclass(slots=True)
class Watched:
    """A tensor of the call that is running, held until it has ended."""

    leaf: TensorLeaf
    slot: str
    tensor: Any
    copy: Any = None
    """What it was before a call that changes it."""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """The first NaN or Inf."""

    record: str
    quality: str
    held: tuple[Watched, ...]
    """The tensors with it in them."""
    is_given: bool
    """It was in what the call was given."""


class Watch:
    """Looks at each call until it has found something."""

    def __init__(self, action: OnNonfinite | None, describer: Describer, reader: TensorReader) -> None:
        self._action = action
        self._describer = describer
        self._reader = reader
        self._is_over = action is None

    def listen(self, tensors: list[Watched]) -> Listener | None:
        """Holds the tensors of a call until it has ended."""
        return None if self._is_over else lambda leaf, slot, tensor: tensors.append(Watched(leaf, slot, tensor))

    def keep_copies(self, inputs: list[Watched]) -> None:
        """Before a call that changes what it is given."""
        for watched in inputs:
            try:
                watched.copy = self._reader.copy(watched.tensor)
                watched.size_bytes = self._reader.size_bytes(watched.tensor)
            except Exception as error:  # no memory left: the call is recorded all the same
                self._describer.note_failure(f"a copy of {watched.slot}", error)

    def find(self, record: str, inputs: list[Watched], outputs: list[Watched], arguments: Any) -> Finding | None:
        """Look at a call that has ended; `arguments` are its leaves, with the plain ones, or None if they are not
        recorded: then Inf may have been given to it. What is found is stored."""
        if self._is_over or not (inputs or outputs):
            return None
        try:
            self._reader.fetch()
        except Exception as error:  # the device has failed: the record says so, and is kept
            self._describer.note_failure("what the device computed", error)
        finding = find_nonfinite(record, inputs, outputs, arguments)
        if finding is None:
            return None
        self._is_over = True
        for watched in (*inputs, *outputs):
            self._store(watched)
        return finding

    def act(self, finding: Finding | None, stack: Stack | None) -> None:
        """Say what was found, if anything was; stop the program if that was asked for."""
        if finding is None:
            return
        text = describe_finding(finding, stack)
        if self._action == "stop":
            raise NonFiniteError(f'{text}. The program stops here because of on_nonfinite "stop"')
        logger.error("%s. The program goes on", text)

    def _store(self, watched: Watched) -> None:
        leaf = watched.leaf
        if leaf.data_name is not None:
            return
        if watched.copy is not None:
            self._describer.store_copy(leaf, watched.slot, watched.copy, watched.size_bytes)
            return
        now = self._reader.read(watched.tensor, None)
        self._reader.fetch()
        if is_same(leaf, now):
            self._describer.store(leaf, watched.slot, watched.tensor)
        else:
            leaf.note = f"{leaf.note}; {_CHANGED}" if leaf.note else _CHANGED


def changes_inputs(stem: str, kwargs: Any) -> bool:
    """Does a call write into what it is given? By its name, and by how it is called."""
    name = stem.rpartition(".")[2]
    is_named_so = name.endswith("_") and not name.endswith("__")
    return (
        is_named_so
        or bool(_IN_PLACE_OPERATOR.fullmatch(name))
        or kwargs.get("out") is not None
        or bool(kwargs.get("inplace"))
    )


def find_nonfinite(record: str, inputs: list[Watched], outputs: list[Watched], arguments: Any) -> Finding | None:
    """NaN before Inf, what is given before what comes out. Undefined memory may hold anything."""
    inputs, outputs = (
        [watched for watched in tensors if not is_undefined(watched.leaf.note)] for tensors in (inputs, outputs)
    )
    for is_given, tensors in ((True, inputs), (False, outputs)):
        held = tuple(watched for watched in tensors if _count(watched, "nan_count"))
        if held:
            return Finding(record, "NaN", held, is_given)
    held = tuple(watched for watched in outputs if _count(watched, "inf_count"))
    if held and arguments is not None and not has_infinity(arguments):
        return Finding(record, "Inf", held, is_given=False)
    return None


def has_infinity(tree: Any) -> bool:
    """Is one of the plain arguments infinite, or an array with infinities?"""
    if isinstance(tree, TensorLeaf):
        stats = tree.value.stats
        return stats is not None and bool(stats.inf_count) and not is_undefined(tree.note)
    if isinstance(tree, dict):
        return any(has_infinity(item) for item in tree.values())
    if isinstance(tree, list):
        return any(has_infinity(item) for item in tree)
    return isinstance(tree, float) and math.isinf(tree)


def describe_finding(finding: Finding, stack: Stack | None) -> str:
    """What was found and stored, for the log."""
    return f"{tell_finding(finding, stack)}. Its tensors are stored with it"


def tell_finding(finding: Finding, stack: Stack | None) -> str:
    """`NaN came out of Functional.softmax.0.forward (output.0: 2), which was given none. …`"""
    attribute = "nan_count" if finding.quality == "NaN" else "inf_count"
    held = ", ".join(
        f"{watched.slot.removeprefix(f'{finding.record}.')}: {_count(watched, attribute):,}" for watched in finding.held
    )
    if finding.record.endswith(f".{PARAMETERS_GRAD}"):  # nobody's result: ranks may have added theirs up
        text = f"{finding.quality} is in {finding.record} ({held}); no call recorded before had any"
        text += ". In a distributed run it may come from another rank: look there"
    elif finding.is_given:
        text = f"{finding.quality} was given to {finding.record} ({held}); no call recorded before had any"
    else:
        text = f"{finding.quality} came out of {finding.record} ({held}), which was given none"
    if stack is not None and stack.frames:
        text += f". {' '.join(stack.frames[0].split())}"
    return text


def _count(watched: Watched, attribute: str) -> int:
    stats = watched.leaf.value.stats
    return int(getattr(stats, attribute)) if stats is not None else 0
