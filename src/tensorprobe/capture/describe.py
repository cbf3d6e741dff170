"""Arguments and results as the leaves of a record. What is no tensor is described by its type and value, never by
its address."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorprobe.capture.framework import TensorReader
from tensorprobe.capture.storing import Storing
from tensorprobe.capture.tensor_queue import TensorQueue
from tensorprobe.model.name import slot_file_name
from tensorprobe.model.record import Stats, TensorLeaf, Value
from tensorprobe.model.tree import MAX_PLAIN_ITEMS, PLAIN_ENDS, is_plain, map_tree
from tensorprobe.store.sketch import sketch_array

Listener = Callable[[TensorLeaf, str, Any], None]
"""Told of a tensor's leaf, its slot and the tensor."""

_MAX_TEXT = 1000
_NAMES = frozenset({str})
NOT_STORED = "not stored, because the limit of disk space was reached"
_PLAIN = (bool, int, float, str)


class Describer:
    """Turns trees of arguments into trees of leaves; puts tensors that are to be stored into the queue."""

    def __init__(self, reader: TensorReader, queue: TensorQueue, file_suffix: str) -> None:
        self._reader = reader
        self._queue = queue
        self._suffix = file_suffix
        self._tensor_type = reader.tensor_type
        is_usual = type(self).describe_plain is Describer.describe_plain
        self._describe_flat = getattr(reader, "describe_flat", None) if is_usual else None
        """Compiled code for what most trees are; it answers None for the others."""
        self._is_end: dict[type, bool] = dict.fromkeys(PLAIN_ENDS, True)
        """Of the types that were met: those of tensors and of plain values, which hold nothing else."""
        self._files: dict[Any, str] = {}
        """The files of this step by their contents, where these are known by nothing else."""
        self.note_failure: Callable[[str, BaseException], None] = lambda where, error: None
        self.note_stale: Callable[[str, str], None] = lambda slot, difference: None
        """Called in verify mode when a value had changed unnoticed."""

    def begin_step(self) -> None:
        self._files.clear()

    def describe(
        self,
        tree: Any,
        slot: str,
        *,
        produced_by: str | None = None,
        stores: Storing = Storing.NONE,
        listen: Listener | None = None,
    ) -> Any:
        """`slot` is the dotted name of the tree; `produced_by` the record whose result it is; `listen` is told of each
        tensor."""
        if self._describe_flat is not None and not stores and listen is None:
            flat = self._describe_flat(tree, produced_by)
            if flat is not None:
                return flat

        def leaf(value: Any, path: str) -> Any:
            if isinstance(value, self._tensor_type):
                described = self.describe_tensor(value, path, produced_by, stores)
                if listen is not None:
                    listen(described, path, value)
                return described
            if value is None:
                return None
            return self._reader.describe_object(value) or self.describe_plain(value, path, stores)

        if stores or listen is not None:
            return map_tree(tree, slot, leaf, self._reader.atoms)
        if type(tree) is dict and _NAMES.issuperset(map(type, tree)) and is_plain(tree.values()):
            return {
                name: None if item is None else self.describe_plain(item, slot, stores) for name, item in tree.items()
            }
        if type(tree) not in (tuple, list) or len(tree) > MAX_PLAIN_ITEMS:
            return map_tree(tree, slot, leaf, self._reader.atoms)
        is_end, above = self._is_end, (id(tree),)
        leaves = []
        for index, item in enumerate(tree):  # nobody asks what these are called: names are made only where one does
            kind = type(item)
            if kind not in is_end:
                is_end[kind] = issubclass(kind, self._tensor_type) and issubclass(kind, self._reader.atoms)
            if not is_end[kind]:
                leaves.append(map_tree(item, f"{slot}.{index}", leaf, self._reader.atoms, above))
            elif item is None:
                leaves.append(None)
            elif kind in PLAIN_ENDS:
                leaves.append(self.describe_plain(item, slot, stores))
            else:
                described = self._reader.read(item, produced_by)
                if described.mismatch is not None:
                    self.note_stale(f"{slot}.{index}", described.mismatch)
                leaves.append(described)
        return leaves

    def describe_tensor(self, tensor: Any, slot: str, produced_by: str | None, stores: Storing) -> TensorLeaf:
        """One tensor, with its file if it is to have one."""
        leaf = self._reader.read(tensor, produced_by)
        if leaf.mismatch is not None:
            self.note_stale(slot, leaf.mismatch)
        if stores and stores.wants(leaf):
            self.store(leaf, slot, tensor)
        return leaf

    def describe_plain(self, value: Any, slot: str, stores: Storing) -> dict[str, Any] | TensorLeaf:
        """What is no tensor has no file."""
        return describe_plain(value)

    def store(self, leaf: TensorLeaf, slot: str, tensor: Any) -> None:
        """Give a leaf its file, unless it has one or there is nothing to put into it."""
        if leaf.data_name is not None or not leaf.is_storable:
            return
        data_name, file_name = slot_file_name(slot, self._suffix), leaf.value.file_name
        try:
            key = self._reader.content_key(tensor) if file_name is None else None
            if key is not None:
                file_name = leaf.value.file_name = self._files.get(key)
            if file_name is not None and (not self._reader.verifies or self._is_stored(file_name, tensor)):
                self._queue.put_link(file_name, data_name)
                leaf.data_name = data_name
            elif not self._queue.admits(self._reader.size_bytes(tensor)):
                leaf.note = f"{leaf.note}, {NOT_STORED}" if leaf.note else NOT_STORED
            elif self._queue.writes_at_once and (content := self._reader.lend(tensor)) is not None:
                if self._queue.write_tensor(data_name, content):
                    leaf.data_name = leaf.value.file_name = data_name
            else:
                self.store_copy(leaf, slot, self._reader.copy(tensor), self._reader.size_bytes(tensor))
            if key is not None and leaf.data_name is not None:
                self._files.setdefault(key, leaf.data_name)
        except Exception as error:  # a kind of tensor that cannot be copied: its record is kept
            leaf.note = f"{leaf.note}, no file" if leaf.note else "no file"
            self.note_failure(f"the file of a {leaf.dtype} tensor", error)

    def find_file(self, tensor: Any, slot: str) -> str | None:
        """The file of this step that has this content, under whatever name; a new one if there is none. None where a
        value is known by its tensor."""
        try:
            key = self._reader.content_key(tensor)
            if key is not None and key not in self._files and self._queue.admits(self._reader.size_bytes(tensor)):
                data_name = slot_file_name(slot, self._suffix)
                self._queue.put_tensor(data_name, self._reader.copy(tensor), self._reader.size_bytes(tensor))
                self._files[key] = data_name
        except Exception as error:  # a kind of tensor that cannot be copied
            self.note_failure(f"the file of {slot}", error)
            return None
        return self._files.get(key)

    def store_copy(self, leaf: TensorLeaf, slot: str, copy: Any, size_bytes: int) -> None:
        """Give a leaf a file with what was copied for it."""
        if leaf.data_name is None and leaf.is_storable:
            data_name = slot_file_name(slot, self._suffix)
            self._queue.put_tensor(data_name, copy, size_bytes)
            leaf.data_name = leaf.value.file_name = data_name  # only now: what could not be put has no file to link to

    def _is_stored(self, file_name: str, tensor: Any) -> bool:
        """In verify mode a file is read again before it gets a further name."""
        self._queue.drain()
        is_stored = self._reader.holds(self._queue.folder.path / file_name, tensor)
        if not is_stored:
            self.note_stale(file_name, "the content of the file")
        return is_stored


def describe_plain(value: Any) -> dict[str, Any] | TensorLeaf:
    """A leaf for a value that is no tensor."""
    kind = type(value)
    if kind is str:
        return {"type": "str", "value": value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"}
    if kind in _PLAIN:
        return {"type": kind.__name__, "value": value}
    if kind is slice or kind is range:
        return {"type": kind.__name__, "value": [_index(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, (list, tuple)):
        return {"type": kind.__name__, "length": len(value), "value": [_first_of(item) for item in value[:8]]}
    if kind is complex:
        return {"type": "complex", "value": str(value)}
    if isinstance(value, np.ndarray):
        return _describe_array(value)
    if isinstance(value, np.generic):
        return {"type": f"numpy.{kind.__name__}", "value": _json_safe(value.item())}
    if isinstance(value, enum.Enum):
        return {"type": _type_name(kind), "value": value.name}
    if isinstance(value, _PLAIN):
        return {"type": _type_name(kind), "value": next(plain(value) for plain in _PLAIN if isinstance(value, plain))}
    if value is Ellipsis:
        return {"type": "ellipsis"}
    if isinstance(value, type) or callable(value):
        return {"type": kind.__name__, "value": getattr(value, "__qualname__", _type_name(kind))}
    return {"type": _type_name(kind)}


def _describe_array(array: np.ndarray[Any, Any]) -> TensorLeaf:
    stats = Stats(reason="empty" if not array.size else None)
    if array.size and array.dtype.kind in "biuf":
        stats = _reduce_array(array)
    return TensorLeaf("numpy.ndarray", str(array.dtype), array.shape, None, Value(stats))


def _reduce_array(array: np.ndarray[Any, Any]) -> Stats:
    """As for tensors: NaN is left out and counted, integers keep their exact extremes."""
    nans = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, dtype=bool)
    numbers = array[~nans]
    if not numbers.size:
        return Stats(np.nan, np.nan, np.nan, np.nan, nan_count=array.size, sketch=sketch_array(array))
    return Stats(
        max=numbers.max().item(),
        min=numbers.min().item(),
        mean=float(numbers.mean(dtype=np.float64)),
        norm=float(np.linalg.norm(numbers.astype(np.float64))),
        nan_count=int(nans.sum()),
        inf_count=int(np.isinf(numbers).sum()),
        sketch=sketch_array(array),
    )


def _first_of(item: Any) -> Any:
    return item if isinstance(item, (*_PLAIN, type(None))) else type(item).__name__


def _index(part: Any) -> Any:
    return part if part is None or isinstance(part, int) else str(type(part).__name__)


def _json_safe(value: Any) -> Any:
    return value if isinstance(value, (*_PLAIN, type(None))) else str(value)


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
