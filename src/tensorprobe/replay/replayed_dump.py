"""What a replay computes, as a dump of the same form: the same records under the same names, with other numbers.

What the replay does not give (an integer, the argument of a call that could not be made again) keeps its recorded
content.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from tensorprobe.capture.torch.npy_file import NpyFiles
from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.capture.torch.tensor_file import TorchFiles
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.name import slot_file_name
from tensorprobe.model.record import Stats
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.parameter_gradient import parameter_gradients
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.result import Coverage
from tensorprobe.run.backward_pass import LeafGradient
from tensorprobe.run.leaf import STATE_ROLES, WRITTEN, Leaf, is_tensor, iter_named_leaves
from tensorprobe.store import layout, stored_file
from tensorprobe.store.encode import show_sketched
from tensorprobe.store.folder import Folder
from tensorprobe.store.reader import Record
from tensorprobe.store.run_id import make_run_id
from tensorprobe.store.writer import RankWriter

_FLUSH_RECORDS = 256
_NUMBERS = frozenset(
    {"Max", "Min", "Mean", "Norm", "Sketch", "nan_count", "inf_count", "reason", "md5", "hash", "dtype", "data_name"}
)
"""What a leaf says of its content: all of it is said anew."""


@dataclass(frozen=True)
class _Written:
    """What one tensor held when its file was written."""

    reference: weakref.ref[torch.Tensor]
    version: int
    name: str
    stats: Stats

    def is_of(self, tensor: torch.Tensor) -> bool:
        return bool(self.version == tensor._version and self.reference() is tensor)


class ReplayedDump(Onlooker):
    """Writes one step of one process. Tensor files come as the replay goes; the records when it is over."""

    def __init__(self, program: Program, root: Path, precision: str) -> None:
        self._program = program
        self._precision = precision
        self._rank = program.rank
        self._folder = Folder(root)
        for place in (layout.step_name(self._rank.step or 0), self._rank.folder.name):
            self._folder = self._folder.child(place)
        self._tensors = self._folder.child(layout.TENSOR_FOLDER)
        is_npy = program.is_mindspore or self._rank.header.get("level") == "api_dump"
        self._suffix = "npy" if is_npy else "pt"
        self._files = NpyFiles() if is_npy else TorchFiles()
        self._reducer = Reducer()
        self._written: dict[int, _Written] = {}
        self._values: dict[tuple[str, str], dict[str, Any]] = {}
        self._with_record = {name for name, _ in parameter_gradients(program)}
        """The parameters whose gradients are recorded under a name of their own."""
        self._run_id = make_run_id()
        self._writer = RankWriter(
            self._folder,
            {**self._rank.header, "task": "tensor", "dump_data_dir": str(self._tensors.path)},
            has_construct=bool(self._rank.parents),
            has_extra=True,
        )

    def open(self) -> None:
        """Refused where there are files of another run."""
        self._attempt(lambda: self._writer.open(self._run(is_complete=False)))

    def see_arguments(self, operation: Operation, tensors: Tensors) -> None:
        leaves = {leaf.slot: leaf for leaf in operation.inputs}
        for role in STATE_ROLES:
            leaves.update(iter_named_leaves({role: operation.state(role)}))
        self._see(operation.name, leaves, tensors)

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        if any(slot.startswith(WRITTEN) for slot in tensors):  # such writes need not give a tensor a new version
            self._written.clear()
        self._see(operation.name, {leaf.slot: leaf for leaf in operation.outputs}, tensors)

    def see_pinned(self, operation: Operation, tensors: Tensors) -> None:
        self._written.clear()  # what is written into a tensor need not give it a new version
        self.see_results(operation, tensors)

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        self._see(record, self._program.gradient_leaves(record), {slot: gradient})

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        if leaf.after is not None and leaf.leaf.parameter not in self._with_record:
            self._values[leaf.place, "after"] = self._write(leaf.place, leaf.after, "after", gradient)

    @property
    def folder(self) -> Path:
        return self._folder.path

    def finish(self, limit: float, coverage: Coverage) -> None:
        """Write the records up to `limit`, and make every file whole."""
        waiting: list[Record] = []
        for record in self._rank.records():
            if self._program.position_of(record.name) > limit:
                break
            waiting.append(record)
            if len(waiting) >= _FLUSH_RECORDS:
                self._append(waiting)
                waiting = []
        self._append(waiting)
        counts = {"calls": coverage.call_count, "replayed": coverage.replayed, "gaps": coverage.gaps}
        run = {
            **self._run(is_complete=True),
            **self._renew_passes(),
            "replay": {"precision": self._precision, **counts},
        }
        self._attempt(lambda: self._writer.close(run, is_finished=True))

    def _append(self, records: list[Record]) -> None:
        def append() -> None:
            self._writer.append_records([(record.name, self._rewrite(record)) for record in records])
            parents = self._rank.parents
            self._writer.append_parents([(one.name, parents.get(one.name)) for one in records])
            for record in records:
                frames = self._rank.stack(record.name)
                self._writer.add_stack(record.name, hash(frames), frames)
            self._writer.flush_stacks()

        self._attempt(append)

    def _see(self, record: str, leaves: Mapping[str, Leaf], tensors: Tensors) -> None:
        for slot, tensor in tensors.items():
            leaf = leaves.get(slot)
            if leaf is not None and (leaf.is_floating or leaf.data_name is None):
                self._values[record, slot] = self._write(record, leaf, slot, tensor)

    def _write(self, record: str, leaf: Leaf, slot: str, tensor: torch.Tensor) -> dict[str, Any]:
        """The numbers of one leaf. One tensor that nobody has written to since is reduced and stored once."""
        name = leaf.data_name or slot_file_name(f"{record}.{slot}", self._suffix)
        known = self._written.get(id(tensor))
        content = tensor.detach().resolve_conj().resolve_neg()
        if known is not None and known.is_of(tensor):
            self._attempt(partial(self._tensors.link, known.name, name))
        else:
            self._attempt(lambda: self._write_file(name, content))
            known = _Written(weakref.ref(tensor), tensor._version, name, self._reducer.reduce(content))
            self._written[id(tensor)] = known
        return {"dtype": self._name_dtype(tensor.dtype), "stats": known.stats, "data_name": name}

    def _name_dtype(self, dtype: torch.dtype) -> str:
        name = str(dtype)
        return name.rsplit(".", 1)[-1].capitalize() if self._program.is_mindspore else name

    def _write_file(self, name: str, content: torch.Tensor) -> None:
        with self._tensors.open_whole(name) as file:
            self._files.write(content.cpu().clone(), file)  # alone in its memory

    def _rewrite(self, record: Record) -> Any:
        """The fields of a record with the numbers of the replay."""
        self._reducer.fetch()
        by_node = {id(leaf.fields): slot for slot, leaf in iter_named_leaves(record.fields)}
        return self._map(record.fields, record.name, by_node)

    def _map(self, tree: Any, record: str, by_node: Mapping[int, str]) -> Any:
        if isinstance(tree, list):
            return [self._map(item, record, by_node) for item in tree]
        if is_tensor(tree):
            return self._renew(tree, record, by_node.get(id(tree), ""))
        if isinstance(tree, dict):
            return {key: self._map(item, record, by_node) for key, item in tree.items()}
        return tree

    def _renew(self, node: dict[str, Any], record: str, slot: str) -> dict[str, Any]:
        found = self._values.get((record, slot))
        if found is None:
            self._copy_file(node)
            return node
        stats: Stats = found["stats"]
        kept = {key: value for key, value in node.items() if key not in _NUMBERS}
        numbers = {"Max": stats.max, "Min": stats.min, "Mean": stats.mean, "Norm": stats.norm}
        counts = {
            "Sketch": stats.sketch and [float(show_sketched(number)) for number in stats.sketch],
            "nan_count": stats.nan_count,
            "inf_count": stats.inf_count,
            "reason": stats.reason,
        }
        return {
            **{key: kept.pop(key) for key in ("type", "dtype", "shape") if key in kept},
            "dtype": found["dtype"],
            **numbers,
            **{key: value for key, value in counts.items() if value},
            **kept,
            "data_name": found["data_name"],
        }

    def _renew_passes(self) -> dict[str, Any]:
        """What the engine was asked for, with the files of the replay."""
        passes = self._rank.run.get("backward_passes")
        if not isinstance(passes, list):
            return {}
        self._map(passes, "", {})  # copies what has a file
        return {"backward_passes": [self._renew_pass(f"backward_pass.{n}", one) for n, one in enumerate(passes)]}

    def _renew_pass(self, name: str, request: Any) -> Any:
        if not isinstance(request, dict):
            return request
        leaves, records = request.get("leaves"), request.get("records")
        renewed = dict(request)
        if isinstance(leaves, list):
            renewed["leaves"] = [self._renew_leaf(name, one) for one in leaves]
        if isinstance(records, int):  # where a later pass replaced a record, it is written once here
            renewed["records"] = bisect_left(self._places, records)
        return renewed

    @cached_property
    def _places(self) -> list[int]:
        return sorted(call.position for call in self._program.run.calls)

    def _renew_leaf(self, name: str, leaf: Any) -> Any:
        number = leaf.get("number") if isinstance(leaf, dict) else None
        found = self._values.get((f"{name}.leaf.{number}", "after"))
        if found is None:
            return leaf
        return {**leaf, "after": {**leaf["after"], "dtype": found["dtype"], "data_name": found["data_name"]}}

    def _copy_file(self, node: Mapping[str, Any]) -> None:
        """What is not computed keeps its file."""
        name = node.get("data_name")
        if not isinstance(name, str):
            return
        try:
            path = self._rank.tensor_path(name)
        except DumpError:
            return

        def copy() -> None:
            with stored_file.bring(path).open("rb") as source, self._tensors.open_whole(name) as target:
                target.write(source.read())

        if stored_file.is_file(path) and not self._tensors.is_file(name):
            self._attempt(copy)

    def _run(self, *, is_complete: bool) -> dict[str, Any]:
        return {**self._rank.run, "run_id": self._run_id, "task": "tensor", "complete": is_complete}

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise UsageError(f"{self._folder.path} could not be written: {error.strerror or error}.") from error
