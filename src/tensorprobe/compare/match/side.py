"""One of two runs, prepared for alignment: contexts, fingerprints, module tree. Calls go by their place in the run."""

from __future__ import annotations

from functools import cached_property

from tensorprobe.compare.match.fingerprint import Fingerprint, Fingerprinter
from tensorprobe.compare.match.module_match import TreeContent
from tensorprobe.model.name import BACKWARD, FORWARD, RECOMPUTE
from tensorprobe.run.call import Call
from tensorprobe.run.module_tree import ModuleNode, ModuleTree, build_tree, is_user_forward
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot


class Side:
    """What alignment needs to know of one run."""

    def __init__(self, run: Run, fingerprinter: Fingerprinter) -> None:
        self.run = run
        self.calls = run.calls
        self.number_of = {call.name: number for number, call in enumerate(run.calls)}
        self.paths = [run.context_path(call) for call in run.calls]
        self.forward = [number for number, call in enumerate(run.calls) if is_user_forward(call)]
        self.framework_made = [
            number for number, call in enumerate(run.calls) if call.caller is not None and call.direction == FORWARD
        ]
        self.orphans = [number for number, call in enumerate(run.calls) if self._is_orphan(call)]
        self.fingerprints: list[Fingerprint | None] = [None] * len(run.calls)
        aligned = (*self.forward, *self.framework_made, *self.orphans)
        found = fingerprinter.take_all([run.calls[number] for number in aligned], run.has_flow)
        for number, fingerprint in zip(aligned, found, strict=True):
            self.fingerprints[number] = fingerprint
        self.tree = ModuleTree()
        self._fingerprinter = fingerprinter
        self._is_flat = False
        self._sources: dict[int, tuple[int, ...]] = {}

    @property
    def has_flow(self) -> bool:
        return self.run.has_flow

    @property
    def has_contexts(self) -> bool:
        """Is it known of any API call in which module it was made?"""
        return any(self.paths[number] is not None for number in self.forward if self.calls[number].kind == "api")

    @property
    def has_api_calls(self) -> bool:
        return any(self.calls[number].kind == "api" for number in self.forward)

    @property
    def has_root_context(self) -> bool:
        """Does it tell what the model itself calls from what is called around it?"""
        return any(self.paths[number] == "" for number in self.forward)

    def build(self, is_flat: bool, has_no_top: bool) -> TreeContent:
        """Make its module tree, as `build_tree` does."""
        self._is_flat = is_flat
        self.tree = build_tree(self.run, self.paths, is_flat, has_no_top)
        return TreeContent(self.tree, self.run, self.fingerprints, self._fingerprinter)

    def fingerprint(self, number: int) -> Fingerprint:
        found = self.fingerprints[number]
        assert found is not None
        return found

    def node(self, number: int) -> ModuleNode:
        """The module it was made in; the top when the other run does not tell that of its calls."""
        return self.tree.top if self._is_flat else self.tree.node(self.paths[number])

    def sources(self, number: int) -> tuple[int, ...]:
        """For each tensor that it takes in, the call that made it; -1 when that is not known."""
        known = self._sources.get(number)
        if known is None:
            known = self._sources[number] = tuple(
                self.number_of.get(slot.source, -1) if slot.source is not None else -1
                for slot in self.calls[number].slots
                if isinstance(slot, TensorSlot) and slot.is_input
            )
        return known

    @cached_property
    def first_consumer(self) -> dict[int, int]:
        """The first forward call that takes in what a forward call made."""
        found: dict[int, int] = {}
        for number in self.forward:
            for source in self.sources(number):
                found.setdefault(source, number)
        found.pop(-1, None)
        return found

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """The forward API calls that take what each call returned."""
        found: dict[int, list[int]] = {}
        for number in self.forward:
            if self.calls[number].kind == "api":
                for source in self.sources(number):
                    found.setdefault(source, []).append(number)
        return found

    def other_direction(self, call: Call, direction: str) -> int | None:
        """The backward or the recomputation of a forward call, or the reverse."""
        return self.number_of.get(call.in_direction(direction))

    def _is_orphan(self, call: Call) -> bool:
        """A backward or recomputed call whose forward was not recorded."""
        return (
            call.direction in (BACKWARD, RECOMPUTE)
            and call.kind in ("api", "module")
            and (self.other_direction(call, FORWARD) is None)
        )
