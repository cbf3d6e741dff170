"""Single tensors of a dump, by the names of their records or files; computed where task `replay` left them out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.model.name import slot_file_name
from tensorprobe.replay.completion import check_repeated
from tensorprobe.replay.result import ReplayOptions
from tensorprobe.run.call import Call
from tensorprobe.run.step import read_calls
from tensorprobe.store import stored_file
from tensorprobe.store.disk import open_whole, writing
from tensorprobe.store.layout import make_folder
from tensorprobe.store.reader import Dump, RankDump, open_dump
from tensorprobe.store.slot import TensorSlot


@dataclass(frozen=True)
class WantedTensor:
    """One tensor that was asked for."""

    call: Call
    slot: TensorSlot
    file_name: str


def write_tensors(dump: Dump, names: Sequence[str], folder: Path, device: str = "cpu") -> list[Path]:
    """Put the tensors of these names there, under the names of their files; those of several ranks in folders of their
    own."""
    ranks = list(dump.ranks())
    written = []
    for rank in ranks:
        wanted = list(find_wanted(rank, names))
        target = folder if len(ranks) == 1 else folder / rank.name
        with tempfile.TemporaryDirectory(prefix="tensorprobe-") as computed:
            whole = _compute(dump, rank, wanted, Path(computed), device)
            for one in wanted:
                source = whole.tensor_path(one.file_name)
                if not stored_file.is_file(source):
                    raise UsageError(describe_missing(one, rank))
                _copy(source, target / one.file_name)
                written.append(target / one.file_name)
    return written


def _copy(source: Path, target: Path) -> None:
    with writing(target.parent):
        make_folder(target.parent)
        with stored_file.bring(source).open("rb") as content, open_whole(target) as file:
            shutil.copyfileobj(content, file)


def describe_missing(one: WantedTensor, rank: RankDump) -> str:
    """Why there is no file of it, although the step was executed again."""
    what = f"{rank.name} has no content of {one.call.name}.{one.slot.slot}"
    if one.slot.is_undefined:
        return f"{what}: it is memory that nobody had written to."
    return f'{what}, and it cannot be computed again. Record with task "tensor" to have it.'


def find_wanted(rank: RankDump, names: Sequence[str]) -> Iterator[WantedTensor]:
    """The tensors that are meant: `Torch.add.0.forward`, all of a record; `Torch.add.0.forward.output.0`, one."""
    found: dict[str, list[WantedTensor]] = {name: [] for name in names}
    known: list[str] = []
    for call, _ in read_calls(rank):
        known.append(call.name)
        for slot in call.tensors:
            place, suffix = f"{call.name}.{slot.slot}", _suffix_of(rank)
            for name in {call.name, place, f"{place}.{suffix}"} & found.keys():
                found[name].append(make_wanted(rank, call, slot))
    for name, tensors in found.items():
        if not tensors:
            advice = suggest(name, known) or "`tensorprobe show` lists the records."
            raise UsageError(f"{rank.name} has no tensor {name!r}: {advice}")
        yield from tensors


def make_wanted(rank: RankDump, call: Call, slot: TensorSlot) -> WantedTensor:
    """One tensor of a call, with the name that its file has, or would have."""
    return WantedTensor(call, slot, slot.data_name or slot_file_name(f"{call.name}.{slot.slot}", _suffix_of(rank)))


def _suffix_of(rank: RankDump) -> str:
    return "npy" if rank.header.get("framework") == "mindspore" else "pt"


def _compute(dump: Dump, rank: RankDump, wanted: Sequence[WantedTensor], folder: Path, device: str) -> RankDump:
    """The rank with files of all that is wanted."""
    missing = [one for one in wanted if not stored_file.is_file(rank.tensor_path(one.file_name))]
    if not missing:
        return rank
    check_computable(missing[0], rank)
    from tensorprobe.replay import iter_executions

    last = max((one.call for one in missing), key=lambda call: call.position).name
    for done in iter_executions(dump.select(rank.step, rank.rank), ReplayOptions("recorded", device, last, folder)):
        check_repeated(done)
    (whole,) = open_dump(folder).ranks()
    return whole


def check_computable(one: WantedTensor, rank: RankDump) -> None:
    """UsageError if a tensor without a file cannot be computed either."""
    if rank.header.get("task") != "replay":
        raise UsageError(
            f"there is no file of {one.call.name}.{one.slot.slot} in {stored_file.show(rank.folder)}, which was "
            f'recorded with task "{rank.header.get("task")}": only what task "replay" left out can be computed. '
            'Record with task "replay" or "tensor".'
        )
