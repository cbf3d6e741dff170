"""The statistics of a run for TensorBoard: scalars and histograms along its steps, each rank as a run of its own.

Written with TensorBoard's own package, which needs neither TensorFlow nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.errors import UsageError
from tensorprobe.report.page.detail import describe_array
from tensorprobe.run.call import Call
from tensorprobe.run.saved_tensor import open_saved
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.disk import writing
from tensorprobe.store.layout import make_folder
from tensorprobe.store.reader import Dump, RankDump
from tensorprobe.store.slot import TensorSlot

_STATISTICS = ("norm", "max", "min", "mean")
_COUNTS = ("nan_count", "inf_count")
_LARGEST_SCALAR = float(np.finfo(np.float32).max)
_OF_ALL = "all"
"""What tags begin with that are of a whole step."""


def check_tensorboard() -> None:
    """Is its package there? Asked before the long work."""
    if find_spec("tensorboard") is None:
        raise UsageError("--to tensorboard needs the tensorboard package: pip install tensorboard")


def write_tensorboard(dump: Dump, folder: Path) -> list[Path]:
    """One event file for each rank, in a folder of its name."""
    check_tensorboard()
    ranks: dict[str, list[RankDump]] = {}
    for rank in dump.ranks():
        ranks.setdefault(rank.folder.name, []).append(rank)
    with writing(folder):
        return [_write_rank(steps, folder / name) for name, steps in ranks.items()]


def _write_rank(steps: list[RankDump], folder: Path) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    make_folder(folder)
    writer = EventFileWriter(str(folder))
    try:
        for number, rank in enumerate(steps):
            run = read_run(rank)
            step, moment = number if rank.step is None else rank.step, _find_moment(rank)
            for summary in _iter_summaries(run):
                writer.add_event(Event(wall_time=moment, step=step, summary=summary))
    finally:
        writer.close()
    return folder


def _find_moment(rank: RankDump) -> float:
    """When the step began, as its run says: the same export twice is the same file."""
    try:
        return datetime.fromisoformat(str(rank.run.get("started"))).timestamp()
    except ValueError:
        return 0.0


def _iter_summaries(run: Run) -> Iterator[Any]:
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb

    norms: dict[str, list[float]] = {}
    for call in run.calls:
        for slot in call.tensors:
            if slot.is_input or slot.is_undefined:
                continue
            name = _writable(f"{call.name}.{slot.slot}" if slot.slot else call.name)
            for statistic, value in _iter_numbers(slot):
                yield scalar_pb(f"{statistic}/{name}", _fit(value))
            if slot.norm is not None:
                norms.setdefault(_kind_of(call), []).append(float(slot.norm))
            values = open_saved(run.rank, slot)
            if values is not None:
                yield _make_histogram(f"values/{name}", values)
    for kind, found in norms.items():
        yield _make_histogram(f"{_OF_ALL}/norms of {kind}", np.array(found))


def _fit(value: float) -> float:
    """A scalar of TensorBoard is a float32: what is finite stays so, at the largest number that there is."""
    return min(max(value, -_LARGEST_SCALAR), _LARGEST_SCALAR) if math.isfinite(value) else value


def _writable(name: str) -> str:
    """A name as an event file can hold it: a dump may have half of a character."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _iter_numbers(slot: TensorSlot) -> Iterator[tuple[str, float]]:
    for name in _STATISTICS:
        value = getattr(slot, name)
        if value is not None:
            yield name, float(value)
    for name in _COUNTS:
        count = getattr(slot, name)
        if count is not None:
            yield name, float(count)


def _kind_of(call: Call) -> str:
    if call.kind == "parameters_grad":
        return "parameter gradients"
    return f"{call.direction or 'saved'} results"


def _make_histogram(tag: str, values: np.ndarray[Any, Any]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    drawn = describe_array(values)["histogram"]
    edges, counts = drawn["edges"], drawn["reference"]
    buckets = np.array([edges[:-1], edges[1:], counts], np.float64).transpose()
    summary = Summary()
    metadata = create_summary_metadata(display_name=None, description=None)
    summary.value.add(tag=tag, metadata=metadata, tensor=make_tensor_proto(buckets, dtype=np.float64))
    return summary
