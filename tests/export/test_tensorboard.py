"""Event files that TensorBoard itself reads back."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tensorprobe.errors import UsageError
from tensorprobe.export.tensorboard import write_tensorboard
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import RUN, forward, tensor, write_rank
from tests.serve.recorded import NAME, VALUES, write_run


def _read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def _scalars(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]


def test_the_statistics_of_each_step_are_scalars_along_the_steps(tmp_path: Path) -> None:
    for step in range(3):
        leaf = tensor(2.0) | {"Norm": 10.0 + step, "nan_count": step, "inf_count": 0}
        write_rank(tmp_path / "dump" / f"step{step}" / "rank0", {NAME: forward(tensor(), output=leaf)})

    (written,) = write_tensorboard(open_dump(tmp_path / "dump"), tmp_path / "events")

    assert written == tmp_path / "events" / "rank0"
    events = _read(written)
    assert _scalars(events, f"norm/{NAME}.output.0") == [(0, 10.0), (1, 11.0), (2, 12.0)]
    assert _scalars(events, f"max/{NAME}.output.0") == [(0, 2.0), (1, 2.0), (2, 2.0)]
    assert _scalars(events, f"nan_count/{NAME}.output.0") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert not [tag for tag in events.Tags()["tensors"] if "input" in tag]
    assert events.SummaryMetadata(f"norm/{NAME}.output.0").plugin_data.plugin_name == "scalars"


def test_a_saved_tensor_is_a_histogram_of_its_elements(tmp_path: Path) -> None:
    dump = open_dump(write_run(tmp_path / "dump"))
    (written,) = write_tensorboard(dump, tmp_path / "events")
    events = _read(written)
    (event,) = events.Tensors(f"values/{NAME}.output.0")
    buckets = make_ndarray(event.tensor_proto)
    assert buckets.shape[1] == 3
    assert buckets[:, 2].sum() == VALUES.size
    assert (buckets[0, 0], buckets[-1, 1]) == (VALUES.min(), VALUES.max())
    assert events.SummaryMetadata(f"values/{NAME}.output.0").plugin_data.plugin_name == "histograms"


def test_without_tensors_the_norms_of_a_step_are_a_histogram(tmp_path: Path) -> None:
    records = {f"Torch.add.{n}.forward": forward(output=tensor(float(n))) for n in range(5)}
    records["Module.fc.Linear.parameters_grad"] = {"weight": [tensor(0.5)]}
    write_rank(tmp_path / "dump" / "step7" / "rank", records)
    (written,) = write_tensorboard(open_dump(tmp_path / "dump"), tmp_path / "events")
    events = _read(written)
    (event,) = events.Tensors("all/norms of forward results")
    assert event.step == 7
    assert make_ndarray(event.tensor_proto)[:, 2].sum() == 5
    assert make_ndarray(events.Tensors("all/norms of parameter gradients")[0].tensor_proto)[:, 2].sum() == 1


def test_each_rank_is_a_run_of_its_own(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path / "dump" / "step0" / f"rank{rank}", {NAME: forward(output=tensor(float(rank)))})
    written = write_tensorboard(open_dump(tmp_path / "dump"), tmp_path / "events")
    assert [_scalars(_read(folder), f"norm/{NAME}.output.0") for folder in written] == [[(0, 0.0)], [(0, 1.0)]]


def test_nan_stays_nan_and_empty_tensors_are_no_trouble(tmp_path: Path) -> None:
    path = write_run(tmp_path / "dump", np.full((2, 3), math.nan))
    (written,) = write_tensorboard(open_dump(path), tmp_path / "events")
    assert make_ndarray(_read(written).Tensors(f"values/{NAME}.output.0")[0].tensor_proto).size == 0
    write_rank(tmp_path / "nan" / "step0" / "rank", {NAME: forward(output=tensor(math.nan))})
    (written,) = write_tensorboard(open_dump(tmp_path / "nan"), tmp_path / "more")
    assert math.isnan(_scalars(_read(written), f"norm/{NAME}.output.0")[0][1])


def test_the_moment_is_when_the_step_began(tmp_path: Path) -> None:
    run = {**RUN, "started": "2026-01-02T03:04:05+00:00"}
    write_rank(tmp_path / "dump" / "step0" / "rank", {NAME: forward()}, run=run)
    (written,) = write_tensorboard(open_dump(tmp_path / "dump"), tmp_path / "events")
    assert _read(written).Tensors(f"norm/{NAME}.output.0")[0].wall_time == 1767323045.0


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    write_rank(tmp_path / "dump" / "step0" / "rank", {NAME: forward()})
    dump = open_dump(tmp_path / "dump")
    with (
        mock.patch("tensorprobe.export.tensorboard.find_spec", return_value=None),
        pytest.raises(UsageError, match="--to tensorboard needs the tensorboard package: pip install tensorboard"),
    ):
        write_tensorboard(dump, tmp_path / "events")


def test_a_name_with_half_of_a_character_is_escaped(tmp_path: Path) -> None:
    name = "Functional.sur\ud800rogate.0.forward"
    write_rank(tmp_path / "dump/step0/rank0", {name: forward(tensor(), output=tensor(2.0))})
    (written,) = write_tensorboard(open_dump(tmp_path / "dump"), tmp_path / "events")
    assert any("sur\\ud800rogate" in tag for tag in _read(written).Tags()["tensors"])


def test_a_finite_norm_beyond_float32_stays_finite(tmp_path: Path) -> None:
    """The scalars of TensorBoard are float32: a gradient of 1e39 is no Inf."""
    leaf = tensor(2.0) | {"Norm": 1e39, "Min": -1e300, "Max": math.inf}
    write_rank(tmp_path / "dump" / "step0" / "rank0", {NAME: forward(tensor(), output=leaf)})
    (written,) = write_tensorboard(open_dump(tmp_path / "dump"), tmp_path / "events")
    events = _read(written)
    largest = float(np.finfo(np.float32).max)
    assert _scalars(events, f"norm/{NAME}.output.0") == [(0, largest)]
    assert _scalars(events, f"min/{NAME}.output.0") == [(0, -largest)]
    assert _scalars(events, f"max/{NAME}.output.0") == [(0, math.inf)]
