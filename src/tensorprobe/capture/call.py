"""One call while it runs, and the gradients that come back to it later. Holds names and descriptions, never the
user's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorprobe.capture.stack import Stack

if TYPE_CHECKING:
    from tensorprobe.capture.recorder import Recorder


class Call:
    """A call of an API or a module that is running, or has run."""

    __slots__ = (
        "backward_name",
        "drawn_from",
        "fields",
        "forward_name",
        "has_own_backward",
        "is_backward_listed",
        "is_forward_listed",
        "is_passed_on",
        "is_pinned",
        "is_recorded",
        "is_undefined",
        "keeps_backward",
        "keeps_forward",
        "kept_fields",
        "layer",
        "module_path",
        "original",
        "parent",
        "stack",
        "stem",
        "watched",
    )

    def __init__(self, stem: str, forward_name: str, backward_name: str, parent: Call | None) -> None:
        self.stem = stem
        """`Module.fc.Linear`, `Functional.linear`: the name without direction and index."""
        self.forward_name = forward_name
        self.backward_name = backward_name
        self.parent = parent
        """The module call around it."""
        self.module_path: str | None = parent.module_path if parent is not None else None
        self.stack: Stack | None = None
        self.keeps_forward = False
        self.keeps_backward = False
        self.is_forward_listed = True
        self.is_backward_listed = True
        self.is_recorded = True
        """False for the call of a module that is only followed, so that what it contains knows its path."""
        self.is_undefined = False
        """It has read undefined memory: so its results mean nothing, and neither do its gradients."""
        self.is_pinned = True
        """It cannot be executed again: a replay takes its results from their files."""
        self.is_passed_on = False
        """Its results are made by the calls inside it."""
        self.has_own_backward = False
        """The program says what its gradients are: nobody can compute them again."""
        self.fields: dict[str, Any] = {}
        self.layer: Call | None = None
        """The layer that it is made in, where a layer is one record."""
        self.original: Call | None = None
        """The forward call that this one repeats in a recomputation."""
        self.kept_fields: dict[str, Any] | None = None
        """What was recorded of a call that may be repeated, to be compared with its repetition."""
        self.drawn_from: Any = None
        """The state of the random generator before a call whose draw is to be kept."""
        self.watched: list[Any] = []
        """With `on_nonfinite`, the tensors it was given, while it runs."""

    def note_listed(self, is_listed: Callable[[str], bool]) -> None:
        """Does `list` name the call, or a module around it?"""
        parent = self.parent
        self.is_forward_listed = is_listed(self.forward_name) or (parent is not None and parent.is_forward_listed)
        self.is_backward_listed = is_listed(self.backward_name) or (parent is not None and parent.is_backward_listed)

    def tell_place(self, fields: dict[str, Any]) -> None:
        """Add to a record of it where it was made: in which module, by which part of the framework."""
        if self.module_path is not None:
            fields["module_path"] = self.module_path
        if self.stack is not None and self.stack.caller is not None:
            fields["caller"] = self.stack.caller


class Slot:
    """The place of one gradient in a backward record: the shares that are still to come, and what they added up to."""

    __slots__ = ("expected", "leaf", "path", "share", "total")

    def __init__(self, path: str) -> None:
        self.path = path
        self.total = 0
        """How many shares a backward pass brings."""
        self.expected = 0
        self.share: Any = None
        self.leaf: Any = None


class GradientRecord:
    """The backward record of one call, from its forward until all its gradients have come."""

    __slots__ = (
        "_recorder",
        "_slots",
        "_waiting",
        "backward_pass",
        "call",
        "generation",
        "inputs",
        "is_begun",
        "is_repeated",
        "outputs",
        "outputs_by_keyword",
        "watched",
    )

    def __init__(self, recorder: Recorder, call: Call) -> None:
        self._recorder = recorder
        self.call = call
        self.generation = recorder.generation
        self.inputs: Any = None
        """Slots of the gradients of the call's outputs, nested as they were."""
        self.outputs: Any = None
        """Slots of the gradients of its positional arguments."""
        self.outputs_by_keyword: Any = None
        self.watched: tuple[list[Any], list[Any]] | None = None
        """With `on_nonfinite`, the gradients that came in and that go on, until all are there."""
        self._slots: list[Slot] = []
        """Those for which gradients come."""
        self._waiting = 0
        self.backward_pass = -1
        """Which backward pass its gradients come from: one pass may run inside another."""
        self.is_begun = False
        self.is_repeated = False
        """A later backward pass over the same graph: its record takes the place of the earlier one."""

    @property
    def is_live(self) -> bool:
        """False after `step()`: the graph may still run, but its gradients belong to no step that is being recorded."""
        return self.generation == self._recorder.generation

    def expect(self, slot: Slot, shares: int = 1) -> None:
        """This many gradients will come for `slot` in a backward pass, to be added up."""
        if shares and not slot.total:
            self._waiting += 1
            self._slots.append(slot)
        slot.total += shares
        slot.expected += shares

    def receive(self, slot: Slot, gradient: Any) -> None:
        """A gradient has come; None where the graph has none."""
        if not self.is_begun:
            self.is_begun = True
            self._recorder.begin_backward(self)
        if gradient is not None:
            slot.share = gradient if slot.share is None else self._recorder.add_gradients(slot.share, gradient)
        slot.expected -= 1
        if slot.expected == 0:
            self._settle(slot)
            self._waiting -= 1
            if self._waiting == 0:
                self.finish()

    def finish(self) -> None:
        """Write what has come, and be ready for another pass over the same graph."""
        for slot in self._slots:
            if slot.share is not None:
                self._settle(slot)
        self._recorder.end_backward(self)
        self._waiting = len(self._slots)
        for slot in self._slots:
            slot.leaf, slot.expected = None, slot.total
        self.is_begun, self.is_repeated = False, True

    def _settle(self, slot: Slot) -> None:
        if slot.share is not None:
            slot.leaf = self._recorder.describe_gradient(self, slot)
            slot.share = None


def container_of(call: Call) -> str | None:
    """The record of the module call around it; a recomputation runs in the backward of the modules around it."""
    parent = call.parent
    if parent is None:
        return None
    is_outermost_repetition = call.original is not None and parent.original is None
    return parent.backward_name if is_outermost_repetition else parent.forward_name


def iter_slots(*trees: Any) -> Any:
    """All slots in nested lists and dicts."""
    for tree in trees:
        if type(tree) is Slot:
            yield tree
        elif type(tree) is list and not any(type(item) is list or type(item) is dict for item in tree):
            yield from [item for item in tree if type(item) is Slot]
        elif isinstance(tree, (list, dict)):
            yield from iter_slots(*(tree.values() if isinstance(tree, dict) else tree))


def slots_to_leaves(tree: Any) -> Any:
    """The same nesting with the leaves that the slots hold."""
    if isinstance(tree, Slot):
        return tree.leaf
    if isinstance(tree, list):
        return [item.leaf if type(item) is Slot else item and slots_to_leaves(item) for item in tree]
    if isinstance(tree, dict):
        return {key: slots_to_leaves(item) for key, item in tree.items()}
    return tree
