"""Edits of a recorded run whose truth is known: every call carries its first name, whatever it is called afterwards.

A layer is taken out or put in, calls are inserted or removed, modules renamed, wrapped or dissolved, operations spelt
otherwise. Afterwards the run is what the changed program would have recorded: counters count anew, producers and
containing modules are named as they are now, and what depends on the change has other values.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from tensorprobe.model.name import BACKWARD, FORWARD, RECOMPUTE, module_stem
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import Slot, TensorSlot

Truth = dict[str, str]
"""Names in the original run and in the edited one, of all calls that are in both."""


@dataclass(slots=True)
class Entry:
    """A call on its way."""

    call: Call
    first_name: str | None
    """None for what was put in."""
    path: str | None


class RunEdit:
    """A run under change; `finish` gives the run and the truth."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.random = random.Random(seed)
        self.entries = [Entry(_copy(call), call.name, run.context_path(call)) for call in run.calls]
        self.source_of_removed: dict[str, str | None] = {}
        self.changes: dict[Hashable, float] = {}

    # -- what an edit may ask

    def forward_api(self) -> list[int]:
        return [
            place
            for place, entry in enumerate(self.entries)
            if entry.call.kind == "api" and entry.call.direction == FORWARD and entry.call.caller is None
        ]

    def layer_lists(self) -> dict[str, list[int]]:
        """Module paths below which there are counted children that do the same, and their numbers."""
        numbers: dict[str, set[int]] = {}
        for entry in self.entries:
            parts = (entry.path or "").split(".")
            for place, part in enumerate(parts):
                if part.isdecimal():
                    numbers.setdefault(".".join(parts[:place]), set()).add(int(part))
        return {path: sorted(found) for path, found in numbers.items() if len(found) >= 2}

    # -- edits

    def remove_layer(self, path: str, number: int) -> None:
        """`layers.3` is gone; those after it move up."""
        prefix = f"{path}.{number}" if path else str(number)
        self._remove([e for e in self.entries if e.path is not None and _is_below(e.path, prefix)])
        self._renumber(path, lambda old: old - 1 if old > number else old)

    def add_layer(self, path: str, number: int) -> None:
        """A copy of a layer, with other values, stands behind it."""
        prefix = f"{path}.{number}" if path else str(number)
        copied = [e for e in self.entries if e.path is not None and _is_below(e.path, prefix)]
        self._renumber(path, lambda old: old + 1 if old > number else old)
        new_prefix = f"{path}.{number + 1}" if path else str(number + 1)
        new_names = {entry.call.name: f"{entry.call.name}+" for entry in copied}
        for directions in ((FORWARD, RECOMPUTE), (BACKWARD,)):
            part = [entry for entry in copied if entry.call.direction in directions]
            if not part:
                continue
            made = [self._copy_into(entry, prefix, new_prefix, new_names) for entry in part]
            forward = directions[0] == FORWARD
            edge = part[-1] if forward else part[0]
            place = next(place for place, entry in enumerate(self.entries) if entry is edge) + forward
            self.entries[place:place] = made

    def insert_calls(self, count: int, op: str | None = None) -> None:
        """Calls of an operation that is used anyway, or of the given one, with their backward, at random places."""
        for _ in range(count):
            places = self.forward_api()
            place = self.random.choice(places)
            model = self.entries[self.random.choice(places)].call
            before = self.entries[place]
            number = len(self.entries)
            chosen = op or model.op
            call = replace(
                model,
                name=f"inserted.{number}.forward",
                op=chosen,
                index=10**6 + number,
                parent=before.call.parent,
                module_path=before.call.module_path,
                slots=tuple(self._other_values(slot, keeps_weights=False) for slot in model.slots),
            )
            self.entries.insert(place + 1, Entry(call, None, before.path))

    def remove_calls(self, count: int) -> None:
        for _ in range(count):
            entry = self.entries[self.random.choice(self.forward_api())]
            self._remove([e for e in self.entries if _is_same_call(e.call, entry.call)])

    def rename_modules(self, renamed: Callable[[str], str]) -> None:
        """Every part of every path."""
        self._rename(lambda path: ".".join(map(renamed, path.split("."))) if path else path)

    def wrap(self, segment: str, class_name: str) -> None:
        """All of the model becomes the only child of a wrapper."""
        roots = [place for place, e in enumerate(self.entries) if e.call.kind == "module" and e.call.path == ""]
        self._rename(lambda path: f"{segment}.{path}" if path else segment)
        for place in reversed(roots):
            root = self.entries[place]
            after = root.call.direction == FORWARD
            call = replace(root.call, name=f"{root.call.name}~", op=class_name, path="", module_path="", parent=None)
            root.call.parent = call.name
            self.entries.insert(place + after, Entry(call, None, ""))

    def dissolve_modules(self, share: float) -> None:
        """Some modules are written out in the module around them."""
        paths = sorted({e.path for e in self.entries if e.path and e.call.kind == "api"})
        leaves = [path for path in paths if not any(_is_below(other, path) and other != path for other in paths)]
        gone = set(self.random.sample(leaves, max(1, int(share * len(leaves)))))
        self._remove([e for e in self.entries if e.call.kind != "api" and e.path in gone])
        for entry in self.entries:
            if entry.path in gone:
                entry.path = entry.path.rpartition(".")[0]
                entry.call.module_path = entry.path

    def respell(self) -> None:
        """Operators for methods, functions for methods, in-place for out of place."""
        others = {
            "add": [("Torch", "add"), ("Tensor", "__add__"), ("Tensor", "add_"), ("Ops", "aten.add.Tensor")],
            "mul": [("Torch", "mul"), ("Tensor", "__mul__"), ("Tensor", "__rmul__")],
            "matmul": [("Torch", "matmul"), ("Tensor", "__matmul__")],
            "div": [("Tensor", "__truediv__"), ("Torch", "true_divide")],
            "softmax": [("Torch", "softmax"), ("Tensor", "softmax"), ("Functional", "softmax")],
            "relu": [("Torch", "relu"), ("Tensor", "relu_")],
            "transpose": [("Torch", "transpose"), ("Torch", "swapaxes")],
        }
        chosen: dict[tuple[str, int], tuple[str, str]] = {}
        for entry in self.entries:
            call = entry.call
            key = (f"{call.prefix}.{call.op}", call.index)
            if call.kind == "api" and call.caller is None and call.op in others:
                call.prefix, call.op = chosen.setdefault(key, self.random.choice(others[call.op]))

    def recompute_layer(self, path: str, number: int) -> None:
        """Activation checkpointing repeats the forward of a layer before its backward."""
        prefix = f"{path}.{number}" if path else str(number)
        inside = [e for e in self.entries if e.path is not None and _is_below(e.path, prefix)]
        first = next(
            (place for place, e in enumerate(self.entries) if e in inside and e.call.direction == BACKWARD), -1
        )
        if first < 0:
            return
        repeated = [
            Entry(replace(e.call, name=f"{e.call.name}!", direction=RECOMPUTE), None, e.path)
            for e in inside
            if e.call.direction == FORWARD
        ]
        self.entries[first:first] = repeated

    def forget_modules(self) -> None:
        """What msprobe writes at L1: no module paths, no producers, nothing the framework made is told apart."""
        self._remove([e for e in self.entries if e.call.kind == "module" or e.call.kind == "parameters_grad"])
        for entry in self.entries:
            entry.path = None
            call = entry.call
            call.module_path = call.parent = call.caller = None
            call.slots = tuple(replace(s, source=None) if isinstance(s, TensorSlot) else s for s in call.slots)

    # -- the values of the changed program

    def change_all_values(self, keeps_weights: bool) -> None:
        """Another device, another seed: nothing that is computed is the same."""
        for entry in self.entries:
            entry.call.slots = tuple(self._other_values(slot, keeps_weights) for slot in entry.call.slots)

    def forget_values(self) -> None:
        for entry in self.entries:
            entry.call.slots = tuple(
                replace(slot, max=None, min=None, mean=None, norm=None) if isinstance(slot, TensorSlot) else slot
                for slot in entry.call.slots
            )

    def change_values_after(self, place: int) -> None:
        """From the first edited call on, what is computed differs; parameters do not."""
        for entry in self.entries[place:]:
            entry.call.slots = tuple(self._other_values(slot, keeps_weights=True) for slot in entry.call.slots)

    def first_difference(self) -> int:
        names = [entry.first_name for entry in self.entries]
        kept = [call.name for call in self.run.calls]
        return next((p for p, (a, b) in enumerate(zip(names, kept, strict=False)) if a != b), len(names))

    # -- the end

    def finish(self) -> tuple[Run, Truth]:
        """Count anew, and name producers and containing modules as they are called now."""
        new_name: dict[str, str] = {}
        counts: Counter[str] = Counter()
        index_of: dict[tuple[str, str, int], int] = {}
        for entry in sorted(self.entries, key=lambda e: e.call.direction != FORWARD):
            call = entry.call
            old = call.name
            if call.kind == "api":
                key = (call.prefix, call.op, call.index)
                if key not in index_of:
                    index_of[key] = counts[f"{call.prefix}.{call.op}"]
                    counts[f"{call.prefix}.{call.op}"] += 1
                call.index = index_of[key]
                call.name = f"{call.prefix}.{call.op}.{call.index}.{call.direction}"
            elif call.kind == "module":
                call.name = f"{module_stem(call.prefix, call.path, call.op)}.{call.direction}.{call.index}"
            elif call.kind == "parameters_grad":
                call.name = f"{module_stem(call.prefix, call.path, call.op)}.parameters_grad"
            new_name[old] = call.name
        for position, entry in enumerate(self.entries):
            call = entry.call
            call.position = position
            call.parent = self._present(call.parent, new_name)
            call.slots = tuple(self._resolved(slot, new_name) for slot in call.slots)
        truth = {e.first_name: e.call.name for e in self.entries if e.first_name is not None}
        return Run(self.run.rank, [entry.call for entry in self.entries]), truth

    def _resolved(self, slot: Slot, new_name: dict[str, str]) -> Slot:
        if isinstance(slot, TensorSlot) and slot.source is not None:
            return replace(slot, source=self._present(slot.source, new_name))
        return slot

    def _present(self, name: str | None, new_name: dict[str, str]) -> str | None:
        """What a call is named now; of one that is gone, what it got its value from."""
        while name is not None and name not in new_name:
            name = self.source_of_removed.get(name)
        return None if name is None else new_name[name]

    def _remove(self, entries: list[Entry]) -> None:
        gone = {id(entry) for entry in entries}
        for entry in entries:
            call = entry.call
            source = next((s.source for s in call.tensors if s.is_input and s.source is not None), None)
            self.source_of_removed[call.name] = call.parent if call.kind == "module" and source is None else source
        self.entries = [entry for entry in self.entries if id(entry) not in gone]

    def _renumber(self, path: str, change: Callable[[int], int]) -> None:
        depth = len(path.split(".")) if path else 0

        def renamed(old: str) -> str:
            parts = old.split(".")
            if len(parts) > depth and parts[:depth] == (path.split(".") if path else []) and parts[depth].isdecimal():
                parts[depth] = str(change(int(parts[depth])))
            return ".".join(parts)

        self._rename(renamed)

    def _rename(self, renamed: Callable[[str], str]) -> None:
        for entry in self.entries:
            call = entry.call
            if entry.path is not None:
                entry.path = renamed(entry.path)
            if call.module_path is not None:
                call.module_path = renamed(call.module_path)
            if call.kind in ("module", "parameters_grad"):
                call.path = renamed(call.path)

    def _copy_into(self, entry: Entry, prefix: str, new_prefix: str, new_names: dict[str, str]) -> Entry:
        call = _copy(entry.call)
        call.name = new_names[call.name]
        call.index += 10**7 if call.kind == "api" else 0
        call.parent = new_names.get(call.parent or "", call.parent)
        call.slots = tuple(
            replace(slot, source=new_names.get(slot.source, slot.source))
            if isinstance(slot, TensorSlot) and slot.source
            else slot
            for slot in (self._other_values(slot, keeps_weights=False) for slot in call.slots)
        )
        path = re.sub(rf"^{re.escape(prefix)}(?=\.|$)", new_prefix, entry.path or "")
        call.module_path = path
        if call.kind in ("module", "parameters_grad"):
            call.path = path
        return Entry(call, None, path)

    def _other_values(self, slot: Slot, keeps_weights: bool) -> Slot:
        if not isinstance(slot, TensorSlot) or not isinstance(slot.max, float):
            return slot
        if keeps_weights and slot.is_input and slot.source is None:
            return slot
        # What one call gives to the next is still one value afterwards.
        content = (slot.shape, slot.max, slot.min, slot.mean, keeps_weights)
        if content not in self.changes:
            self.changes[content] = 1 + self.random.uniform(0.01, 0.2)
        change = self.changes[content]
        numbers = {
            name: value * change if isinstance(value := getattr(slot, name), float) else value
            for name in ("max", "min", "mean", "norm")
        }
        return replace(slot, **numbers, checksum=None)


def _copy(call: Call) -> Call:
    return replace(call)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}.")


def _is_same_call(one: Call, other: Call) -> bool:
    return (one.kind, one.prefix, one.op, one.index) == (other.kind, other.prefix, other.op, other.index)
