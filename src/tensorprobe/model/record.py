"""What is known of one value: its statistics, its checksum, where it lies, where it came from.

A `Value` is one content at one moment. Several slots (the output of one call, the input of the next) may hold the same
value; it is then reduced once and stored once. `stats` is filled when the reduction is fetched from the device, which
may be later than the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

Number = bool | int | float | None


class Stats:
    """Max, Min, Mean and Norm over the elements that are not NaN, how many were NaN or infinite, and the sketch, which
    depends on the order of the elements."""

    __slots__ = ("inf_count", "max", "mean", "min", "nan_count", "norm", "reason", "sketch", "text")

    def __init__(
        self,
        max: Number = None,  # noqa: A002  the words of the format
        min: Number = None,  # noqa: A002
        mean: Number = None,
        norm: Number = None,
        nan_count: int = 0,
        inf_count: int = 0,
        reason: str | None = None,
        sketch: list[float] | None = None,
    ) -> None:
        self.max = max
        self.min = min
        self.mean = mean
        self.norm = norm
        self.nan_count = nan_count
        self.inf_count = inf_count
        self.reason = reason
        """Why there are no statistics, where there are none: "meta tensor", "empty"."""
        self.sketch = sketch
        self.text: str | None = None
        """How it was written, once it was: a value is often in several records, and changes no more then."""

    @property
    def is_finite(self) -> bool:
        return self.nan_count == 0 and self.inf_count == 0

    def reordered(self, sketch: list[float] | None) -> Stats:
        """Of the same elements in another order."""
        return Stats(self.max, self.min, self.mean, self.norm, self.nan_count, self.inf_count, self.reason, sketch)


class Value:
    """One content of one tensor at one moment."""

    __slots__ = ("digest", "digest_kind", "file_name", "stats")

    def __init__(self, stats: Stats | None) -> None:
        self.stats = stats
        self.digest: str | None = None
        """The checksum of summary_mode md5 or hash; `digest_kind` is its key in the file."""
        self.digest_kind = "md5"
        self.file_name: str | None = None
        """The first file that holds it; further names are links to that one."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is spread over the ranks of a mesh. Statistics and files are then of the part on this rank."""

    placements: tuple[str, ...]
    """For each dimension of the mesh: `Shard(dim=0)`, `Replicate()`, `Partial(sum)`."""
    mesh_shape: tuple[int, ...]
    mesh_names: tuple[str, ...] | None
    local_shape: tuple[int, ...]
    mesh_ranks: tuple[int, ...] = ()
    """The global ranks, in the order of their places on the mesh."""


@dataclass(init=False)
class TensorLeaf:
    """One tensor in one slot of a record. There are many, and most of what one could have to say it does not: what is
    not given stays with the class."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool | None
    value: Value
    source: str | None = None
    data_name: str | None = None
    note: str | None = None
    """What else a reader must know: "sparse_coo", "undefined memory"."""
    mismatch: str | None = None
    """In verify mode: what had changed unnoticed of a value that was taken as known. `value` is the new one."""
    is_storable: bool = True
    """False for a tensor without content (meta, fake): there is nothing to put into a file."""
    sharding: Sharding | None = None
    is_leaf: bool = True
    """No recorded call is known to have made what it holds."""
    tensor: int | None = None
    """The number of the tensor itself: tells it from others in the same memory. None where it is not known."""
    parameter: str | None = None
    """The dotted name of the parameter that it is."""
    storage: int | None = None
    """The number of its storage: tensors with one number share their memory. None where that is not known."""
    layout: tuple[int, tuple[int, ...]] | None = None
    """Where it begins in its storage and its strides; None for one that begins at 0 and is contiguous."""
    view_of: int | None = None
    """The number of the tensor that it is a view of, where no recorded call took it: `x.T`."""
    starts_graph: bool = False
    """Gradients end in it, though a recorded call made what it holds: `x.detach().requires_grad_()`."""
    is_conjugated: bool = False
    """It shows the complex conjugates of what is in its storage."""
    is_negated: bool = False

    def __init__(
        self,
        type: str,  # noqa: A002  the word of the format
        dtype: str,
        shape: tuple[int, ...],
        requires_grad: bool | None,
        value: Value,
        source: str | None = None,
        **others: Any,
    ) -> None:
        self.type = type
        self.dtype = dtype
        self.shape = shape
        self.requires_grad = requires_grad
        self.value = value
        self.source = source
        if others:
            if not _LEAF_FIELDS.issuperset(others):
                raise TypeError(f"a leaf has no {min(others.keys() - _LEAF_FIELDS)}")
            self.__dict__.update(others)


_LEAF_FIELDS = frozenset(field.name for field in fields(TensorLeaf))


class LateField(ABC):
    """A field of a record whose content is known only when statistics have been fetched: when it is written."""

    @abstractmethod
    def resolve(self) -> Any:
        """What to write."""
