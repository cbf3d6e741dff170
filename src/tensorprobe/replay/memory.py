"""How much memory a replay will take at its peak, known from the recorded shapes before anything is allocated.

What is counted: leaves, which stay; results until nobody looks at them any more, or, where autograd keeps them for its
derivative, until the backward pass is over; the gradients of parameters; and the files that were read last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tensorprobe.capture.torch.function import PASSES_ON, SAVES_NOTHING, SAVES_RESULT, VIEWS, base_op
from tensorprobe.errors import DumpError
from tensorprobe.replay.program import Operation, Program
from tensorprobe.run.leaf import Leaf, iter_leaves
from tensorprobe.store import stored_file
from tensorprobe.store.reader import RankDump

TOLD_BYTES = 1 << 30
"""A replay that takes more says so before it begins."""
_KEPT_BYTES = 256 << 20
_LEAST_LIMIT_BYTES = 1 << 30
_LIMIT_PER_FILE_BYTE = 100
"""So many times what its files hold may the replay of a dump take, unless the user says more."""
_TRANSIENT = 3
"""A call that is made alone takes so many times what goes in and comes out: results, gradients, rounded once more."""

Key = tuple[str, int | str]
"""One piece of memory: a storage, a tensor without one, or a file."""


@dataclass(frozen=True)
class Memory:
    """What a replay takes."""

    peak_bytes: int
    call: str
    """Where the peak is."""


@dataclass
class _Ledger:
    """The pieces of memory of a program: how large, and when they come and go."""

    size: dict[Key, int] = field(default_factory=dict)
    alias: dict[Key, Key] = field(default_factory=dict)
    """A cast means nothing in float64: its result is its argument."""
    last: dict[Key, int] = field(default_factory=dict)
    leaves: set[Key] = field(default_factory=set)
    saved: set[Key] = field(default_factory=set)
    learned: set[Key] = field(default_factory=set)
    """Leaves that get a gradient."""

    def note(self, leaf: Leaf) -> Key:
        key = self.find(leaf)
        self.size[key] = max(self.size.get(key, 0), wide_bytes(leaf))
        return key

    def find(self, leaf: Leaf) -> Key:
        key = key_of(leaf)
        while key in self.alias:
            key = self.alias[key]
        return key

    def total(self, keys: Iterable[Key]) -> int:
        return sum(self.size[key] for key in set(keys))


def estimate_memory(program: Program) -> Memory:
    """What replaying a step in float64, and each of its calls alone, takes at most."""
    order = list(program.endings())
    ledger = _Ledger()
    for number, operation in enumerate(order):
        _note_operation(ledger, operation, number)
    goes: dict[int, list[Key]] = {}
    for key, number in ledger.last.items():
        if key not in ledger.leaves and key not in ledger.saved:
            goes.setdefault(number, []).append(key)
    current, known = 0, set[Key]()
    peak, place = 0, ""
    for number, operation in enumerate(order):
        keys = {ledger.find(leaf) for leaf in (*operation.inputs, *operation.outputs)}
        current += ledger.total(keys - known) + _internal_bytes(operation)
        known |= keys
        transient = 0 if operation.is_module else _TRANSIENT * ledger.total(keys)
        if current + transient > peak:
            peak, place = current + transient, operation.name
        current -= ledger.total(goes.get(number, ()))
    after = ledger.total(ledger.leaves | ledger.saved) + ledger.total(ledger.learned)
    if after > peak:
        peak, place = after, "the gradients"
    return Memory(peak + _count_kept(program, ledger), place)


def _note_operation(ledger: _Ledger, operation: Operation, number: int) -> None:
    made = ledger.size.keys()
    given, results = list(operation.inputs), list(operation.outputs)
    for leaf in given:
        key = ledger.find(leaf)
        if key not in made and not operation.is_module:
            ledger.leaves.add(key)
            if leaf.requires_grad and leaf.is_floating:
                ledger.learned.add(key)
        ledger.last[ledger.note(leaf)] = number
    op = base_op(operation.prefix, operation.op)
    if op in PASSES_ON and given and results and given[0].is_floating and results[0].is_floating:
        first, last = ledger.find(given[0]), ledger.find(results[0])
        if first != last and last not in made:
            ledger.alias[last] = first
    for leaf in results:
        ledger.last[ledger.note(leaf)] = number
    if any(leaf.requires_grad for leaf in results) and not operation.is_module:
        ledger.saved.update(ledger.find(leaf) for leaf in _iter_saved(op, given, results))


def _iter_saved(op: str, given: list[Leaf], results: list[Leaf]) -> Iterator[Leaf]:
    """What autograd keeps for the derivative."""
    name = op.strip("_")
    if name in SAVES_NOTHING or op in VIEWS or (len(given) < 2 and name in ("mul", "div")):
        return
    if name in SAVES_RESULT:
        yield from results
        return
    yield from (leaf for leaf in given if leaf.is_floating)


def _internal_bytes(operation: Operation) -> int:
    """What autograd keeps besides, and no record shows."""
    op = base_op(operation.prefix, operation.op)
    first = next(iter(operation.inputs), None)
    if first is None or not any(leaf.requires_grad for leaf in operation.outputs):
        return 0
    if op.startswith(("cross_entropy", "dropout")):
        return wide_bytes(first)
    if op == "scaled_dot_product_attention":
        return sum(wide_bytes(leaf) for leaf in operation.outputs)
    return 0


def _count_kept(program: Program, ledger: _Ledger) -> int:
    """The files that were read last are kept twice: by the replay, of its leaves; by the judge, of everything."""
    leaves = results = 0
    seen: set[Key] = set()
    for operation in program.calls():
        for leaf in operation.inputs:
            if ledger.find(leaf) in ledger.leaves and key_of(leaf) not in seen:
                seen.add(key_of(leaf))
                leaves += recorded_bytes(leaf)
        results += sum(recorded_bytes(leaf) for leaf in operation.outputs if operation.op not in VIEWS)
    for fields in program.gradients.values():
        for name, tree in fields.items():
            if name != "input":
                results += sum(recorded_bytes(leaf) for leaf in iter_leaves(tree, name))
    return min(leaves, _KEPT_BYTES) + min(leaves + results, _KEPT_BYTES)


def key_of(leaf: Leaf) -> Key:
    if leaf.storage is not None:
        return ("storage", leaf.storage)
    return ("tensor", leaf.tensor) if leaf.tensor is not None else ("file", leaf.data_name or "")


def wide_bytes(leaf: Leaf) -> int:
    """Of a tensor in a replay: in float64, or as it was if it does not float."""
    if leaf.is_floating:
        return leaf.element_count * (16 if leaf.dtype.startswith("complex") else 8)
    return recorded_bytes(leaf)


def recorded_bytes(leaf: Leaf) -> int:
    width = next((int(bits) for bits in ("128", "64", "32", "16") if leaf.dtype.endswith(bits)), 8)
    return leaf.element_count * max(1, width // 8)


# -- what there is -----------------------------------------------------------------------------------------------------


def find_limit(ranks: Sequence[RankDump], available_bytes: int, asked_bytes: int | None = None) -> int:
    """How much the replay of these ranks together may take: what the user says; else what is available, and no more
    than dumps of this size may need. A dump may come from anyone."""
    if asked_bytes is not None:
        return asked_bytes
    explained = sum(max(_LEAST_LIMIT_BYTES, _LIMIT_PER_FILE_BYTE * count_file_bytes(rank)) for rank in ranks)
    return min(available_bytes, explained)


def count_file_bytes(rank: RankDump) -> int:
    """What the tensor files of a step hold; a file with several names counts once."""
    folder = rank.folder / rank.tensor_folder
    paths = [folder / name for name in stored_file.names(folder)] if stored_file.is_folder(folder) else []
    found = {stored_file.identify(path): stored_file.size_bytes(path) for path in paths}
    return sum(found.values())


def find_available_bytes(device: torch.device) -> int:
    """What a device can give; what it has, where it does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return _find_installed_bytes()


def _find_installed_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 40


def check_memory(ranks: Sequence[RankDump], needed: Sequence[Memory], limit_bytes: int) -> None:
    """DumpError where a replay of these ranks together would take more than it may, before it begins."""
    total = sum(memory.peak_bytes for memory in needed)
    if total > limit_bytes:
        largest = max(needed, key=lambda memory: memory.peak_bytes)
        raise DumpError(
            f"Replaying {name_ranks(ranks)} would take {format_bytes(total)} of memory, most of it at "
            f"{largest.call}, and {format_bytes(limit_bytes)} is the limit here. Replay it on a machine or a device "
            "with more memory; if it is there, say so with --memory GIB."
        )


def name_ranks(ranks: Sequence[RankDump]) -> str:
    """`step0/rank3`, `step0/rank0 … rank7 together`"""
    first = ranks[0].name
    return first if len(ranks) == 1 else f"{first} … {ranks[-1].folder.name} together"


def format_bytes(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
