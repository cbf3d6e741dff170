"""What a recorded collective exchanges: with which ranks, what it reads, what it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorprobe.replay.program import Operation, Program
from tensorprobe.run.leaf import Leaf

Key = tuple[Any, ...]
"""Equal for the calls of all ranks that belong together."""

KINDS = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier")
)
TRANSFERS = frozenset(("send", "recv"))
_MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Communication:
    """One collective of one rank."""

    operation: Operation
    kind: str
    group: str
    ranks: tuple[int, ...]
    """The global ranks of its group, in its order."""
    number: int
    """Its place in the order of its group."""
    reads: tuple[Leaf, ...]
    writes: tuple[Leaf, ...]
    """The arguments that it writes to; none where it returns its result."""
    results: tuple[Leaf, ...]
    """What came out: what was written, or returned."""
    op: str
    root: int | None
    """The global rank that sends, or receives, all."""
    tag: int
    output_splits: tuple[int, ...]
    input_splits: tuple[int, ...]
    started: int
    """How many records there were when it was started."""
    is_split: tuple[bool, bool]
    """Is what is read, and what is written, a list with one tensor for each rank?"""

    @property
    def targets(self) -> tuple[Leaf, ...]:
        """What the results are like, one for each."""
        return self.writes or self.results

    def key(self, rank: int) -> Key:
        """`rank`: who makes the call."""
        if self.kind not in TRANSFERS:
            return ("collective", self.group, self.ranks, self.number)
        sender, receiver = (rank, self.root) if self.kind == "send" else (self.root, rank)
        return ("transfer", self.group, sender, receiver, self.tag, self.number)

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks that must come together; a sender comes first."""
        if self.kind not in TRANSFERS:
            return self.ranks
        if self.root is None:
            return ()
        return (rank, self.root) if self.kind == "send" else (self.root, rank)

    def describe(self) -> tuple[Any, ...]:
        """What the calls of all ranks must have in common."""
        size = sum(leaf.element_count for leaf in self.reads)
        shared = size if self.kind in ("all_reduce", "reduce", "reduce_scatter", "broadcast") else None
        dtypes = frozenset(leaf.dtype for leaf in self.reads) if self.reads else None
        return (self.kind, self.op, self.root, shared, dtypes if shared is not None else None)


def read_communications(program: Program) -> Iterator[Communication]:
    """The collectives of a program."""
    for operation in program.calls():
        found = read_communication(operation)
        if found is not None:
            yield found


def read_communication(operation: Operation) -> Communication | None:
    """What a record says of its collective; None where it is none, or was recorded without."""
    told = operation.fields.get("collective")
    if not isinstance(told, dict) or told.get("kind") not in KINDS | TRANSFERS:
        return None
    group: Any = told.get("group")
    ranks = _numbers(group.get("ranks")) if isinstance(group, dict) else ()
    number, started = told.get("number"), told.get("started")
    if not ranks or not isinstance(number, int) or not isinstance(started, int):
        return None
    reads, writes = _texts(told.get("reads")), _texts(told.get("writes"))
    root = told.get("peer" if told["kind"] in TRANSFERS else "root")
    return Communication(
        operation=operation,
        kind=str(told["kind"]),
        group=str(group.get("name")),
        ranks=ranks,
        number=number,
        reads=tuple(_select(operation, reads)),
        writes=tuple(_select(operation, writes)),
        results=tuple(_find_results(operation, writes)),
        op=str(told.get("op", "sum")),
        root=root if isinstance(root, int) else None,
        tag=told["tag"] if isinstance(told.get("tag"), int) else 0,
        output_splits=_numbers(told.get("output_splits")),
        input_splits=_numbers(told.get("input_splits")),
        started=started,
        is_split=(_is_list(operation, reads), _is_list(operation, writes)),
    )


def _select(operation: Operation, slots: Sequence[str]) -> Iterable[Leaf]:
    return (leaf for leaf in operation.inputs if any(_is_at(leaf.slot, slot) for slot in slots))


def _find_results(operation: Operation, writes: Sequence[str]) -> Iterable[Leaf]:
    """The record lists every argument that holds tensors as a result; those that were written are wanted."""
    if not writes:
        return operation.outputs if not _lists_arguments(operation) else iter(())
    slots = [slot for slot in _argument_slots(operation) if any(_is_at(leaf.slot, slot) for leaf in operation.inputs)]
    wanted = [f"output.{number}" for number, slot in enumerate(slots) if slot in writes]
    return (leaf for leaf in operation.outputs if any(_is_at(leaf.slot, slot) for slot in wanted))


def _lists_arguments(operation: Operation) -> bool:
    return not operation.op.startswith("_c10d_functional")


def _argument_slots(operation: Operation) -> list[str]:
    return [f"input.{number}" for number in range(len(operation.arguments))] + [
        f"kwargs.{key}" for key in operation.keywords
    ]


def _is_at(slot: str, root: str) -> bool:
    return slot == root or slot.startswith(f"{root}.")


def _is_list(operation: Operation, slots: Sequence[str]) -> bool:
    return any(leaf.slot != slot for slot in slots for leaf in operation.inputs if _is_at(leaf.slot, slot))


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_RANKS:
        return ()
    return tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool) and item >= 0)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
