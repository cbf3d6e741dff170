"""A recorded step is a program: here it is executed again, without the code that made it.

In float64 this gives what the program means, without its rounding: `truth` holds a run against it. Needs torch, which
is imported when something is replayed, not before.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.count import count_noun
from tensorprobe.model.name import FORWARD, LAYER_PREFIX
from tensorprobe.replay.result import Execution, Finding, ReplayOptions, Truth
from tensorprobe.run.call import Call
from tensorprobe.run.step import read_calls
from tensorprobe.store.reader import Dump, RankDump, open_dump
from tensorprobe.store.record_file import RecordFile

_LOOKED_AT = 1000

logger = logging.getLogger("tensorprobe")

if TYPE_CHECKING:
    from tensorprobe.replay.program import Program

Reach = Callable[[int, int], None]
"""Called with how many calls are done and how many there are."""


class TruthReport:
    """What the truth says of a run: true where nothing is wrong."""

    def __init__(self, runs: list[Truth]) -> None:
        self.runs = runs
        """One for each step and rank."""

    def __bool__(self) -> bool:
        return all(self.runs)

    def __repr__(self) -> str:
        return f"<TruthReport of {len(self.runs):,} steps and ranks: {count_noun(len(self.findings), 'finding')}>"

    def __str__(self) -> str:
        """What `tensorprobe truth` says of each step and rank."""
        return "\n".join(map(str, self.runs))

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong, in all steps and ranks."""
        return [finding for run in self.runs for finding in run.findings]


def truth(
    dump: str | Path,
    *,
    step: int | None = None,
    rank: int | None = None,
    device: str = "cpu",
    memory: float | None = None,
) -> TruthReport:
    """Replay a run in float64 and hold it against what it means: its loss, its gradients, every call.

    `dump` is a dump_path, or the folder of a step or rank in it, recorded with task "tensor" or "replay" at level L1 or
    mix.
    `memory` is how many GiB the replay may take; by default what is available, if the dump's size explains it.
    """
    limit = MemoryLimit(memory, _tell_memory)
    return TruthReport(list(iter_truths(open_dump(dump).select(step, rank), device, limit=limit)))


def _tell_memory(sentence: str) -> None:
    logging.getLogger("tensorprobe").info(sentence)


@dataclass(frozen=True)
class MemoryLimit:
    """How much memory a replay may take."""

    gib: float | None = None
    """None for what is available, if the dump's size explains it."""
    tell: Callable[[str], None] = _tell_memory
    """Told of a replay that takes much, before it begins."""

    def __post_init__(self) -> None:
        if self.gib is not None and not (0 < self.gib < 1 << 20):
            raise UsageError(f"memory {self.gib!r} is not a number of GiB: write one larger than 0, such as 16")


def iter_truths(
    dump: Dump, device: str = "cpu", reach: Reach = lambda done, total: None, limit: MemoryLimit | None = None
) -> Iterator[Truth]:
    """One step after the other; its ranks together, as far as they communicate."""
    torch_device = _prepare(dump, device)
    limit = limit or MemoryLimit()
    from tensorprobe.replay.completion import NotRepeatedError, completed
    from tensorprobe.replay.truth import find_truths

    with ExitStack() as stack:
        try:
            whole = stack.enter_context(completed(dump, device))
        except NotRepeatedError as error:
            logger.warning("what was not recorded is not judged: %s", error)
            whole = dump
        for programs, advance in _iter_programs(whole, reach, torch_device, limit):
            yield from find_truths(programs, torch_device, advance)


def iter_executions(dump: Dump, options: ReplayOptions, reach: Reach = lambda done, total: None) -> Iterator[Execution]:
    """Execute one step of one rank after the other again, and write what comes out where `options` says so."""
    torch_device = _prepare(dump, options.device)
    from tensorprobe.replay.execution import execute

    for programs, advance in _iter_programs(dump, reach, torch_device, MemoryLimit(options.memory)):
        yield from execute(programs, torch_device, options, advance)


def make_repro(dump: Dump, call: str, folder: Path) -> Path:
    """One call as a script, with its tensors; the path of the script."""
    _prepare(dump, "cpu")
    from tensorprobe.replay.completion import completed
    from tensorprobe.replay.program import read_program
    from tensorprobe.replay.repro import write_repro

    ranks = list(dump.ranks())
    if len(ranks) != 1:
        names = ", ".join(rank.name for rank in ranks[:4])
        raise UsageError(f"{len(ranks)} steps and ranks are there ({names}, …): choose one with --step and --rank.")
    is_mindspore = ranks[0].header.get("framework") == "mindspore"
    with nullcontext(dump) if is_mindspore else completed(dump) as whole:  # no replay gives the bits of MindSpore
        return write_repro(read_program(next(whole.ranks())), call, folder)


def make_repro_text(rank: RankDump, call: str) -> str:
    """The script that `make_repro` writes, without its tensors. What it cannot be made of is an error, as there; of
    MindSpore only where the program has it loaded, which takes longer than all that a report does."""
    check_replayable(rank)
    find_device("cpu")
    if rank.header.get("framework") == "mindspore" and "mindspore" not in sys.modules:
        raise UsageError("a script for a call of MindSpore is made with MindSpore: `tensorprobe repro` writes it")
    from tensorprobe.replay.program import read_program
    from tensorprobe.replay.repro import make_text

    return make_text(read_program(rank), call)


def _prepare(dump: Dump, device: str) -> Any:
    for one in dump.ranks():
        check_replayable(one)
    return find_device(device)


def _iter_programs(
    dump: Dump, reach: Reach, device: Any, limit: MemoryLimit
) -> Iterator[tuple[list[Program], Callable[[], None]]]:
    """The programs of each step, those together that communicate, and what to call after each of their calls."""
    from tensorprobe.replay.order import find_components
    from tensorprobe.replay.program import read_program

    for _, ranks in groupby(dump.ranks(), key=lambda one: (one.step, one.folder if one.rank is None else None)):
        programs = {one.rank or 0: read_program(one) for one in ranks}
        for component in find_components(programs):
            chosen = [programs[rank] for rank in component]
            limit_memory(chosen, device, limit)
            total, done = sum(1 for program in chosen for _ in program.calls()), 0

            def advance(total: int = total) -> None:
                nonlocal done
                done += 1
                reach(done, total)

            yield chosen, advance


def limit_memory(programs: Sequence[Program], device: Any, limit: MemoryLimit) -> None:
    """Say how much memory the replay of these ranks, which run together, will take, if that is much; DumpError if it is
    too much. Each may take what the others leave."""
    from tensorprobe.replay import memory

    asked = None if limit.gib is None else int(limit.gib * 2**30)
    ranks = [program.rank for program in programs]
    limit_bytes = memory.find_limit(ranks, memory.find_available_bytes(device), asked)
    needed = [memory.estimate_memory(program) for program in programs]
    memory.check_memory(ranks, needed, limit_bytes)
    total = sum(one.peak_bytes for one in needed)
    for program, own in zip(programs, needed, strict=True):
        program.limit_bytes = limit_bytes - (total - own.peak_bytes)
    if total > memory.TOLD_BYTES:
        limit.tell(f"replaying {memory.name_ranks(ranks)} will take about {memory.format_bytes(total)} of memory")


def check_replayable(rank: RankDump) -> None:
    """DumpError, with what to record instead, for a dump that cannot be executed again."""
    header, where = rank.header, rank.folder
    if header.get("framework") not in (None, "pytorch", "mindspore"):
        raise DumpError(
            f"{where} was recorded in {header.get('framework')}; only dumps of PyTorch and MindSpore can be replayed."
        )
    if header.get("level") in ("L0", "debug"):
        raise DumpError(
            f"{where} was recorded at level {header['level']}, which has no calls to replay: record it at L1 or mix."
        )
    if rank.api_dump is not None:
        check_api_dump(rank)
    if header.get("task") not in ("tensor", "replay"):
        raise DumpError(
            f'{where} was recorded with task "{header.get("task")}", which keeps no tensors to start from: '
            'record it with task "replay" or "tensor".'
        )


def check_api_dump(rank: RankDump) -> None:
    """The same for a dump of api_dump."""
    where = rank.folder
    if not isinstance(rank.dump_file, RecordFile):
        raise DumpError(
            f"{where} has no dump.json: it was written by TroubleShooter, and does not say enough to replay it."
        )
    if rank.header.get("task") != "tensor":
        return
    for call, _ in read_calls(rank):
        for slot in call.tensors:
            if slot.data_name is None:
                raise DumpError(
                    f"{where} has no file for {slot.slot} of {call.name}: what api_dump filters is needed for a "
                    'replay. Record it with api_dump_start(dump_type="all", filter_data=False).'
                )


def tells_tensors_apart(rank: RankDump) -> bool:
    """Does it say of values which ones are one tensor? Only then is the program certain that is made of it."""
    from tensorprobe.run.leaf import iter_named_leaves

    records = list(islice(rank.records(), _LOOKED_AT))
    leaves = [leaf for record in records for _, leaf in iter_named_leaves(record.fields)]
    if rank.header.get("framework") == "mindspore":  # there values are linked by their bits, and parameters by name
        return any(leaf.parameter for leaf in leaves) or any("settings" in record.fields for record in records)
    return any(leaf.tensor is not None for leaf in leaves)


def find_untold_layer(calls: Iterable[Call]) -> str | None:
    """A layer that is one record, where none says which calls it is made of."""
    layers = [call for call in calls if call.prefix == LAYER_PREFIX and call.direction == FORWARD]
    return layers[0].name if layers and not any(layer.parts for layer in layers) else None


NO_TORCH = "a replay needs torch: pip install torch"


def find_device(name: str) -> Any:
    """The device of torch; UsageError where torch, or the device, is not there."""
    try:
        import torch
    except ImportError:
        raise UsageError(NO_TORCH) from None
    if name not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not one of cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device 'cuda' was asked for, and torch finds none here: leave it out to replay on the CPU")
    return torch.device(name)
