"""Tensors of real runs behind a page: saved, computed again, or not to be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import tensorprobe
from tensorprobe.errors import UsageError
from tensorprobe.replay.completion import NotRepeatedError
from tensorprobe.report.page.run import build_run_page
from tensorprobe.serve import tensor_source
from tensorprobe.serve.shown import ShownRun
from tensorprobe.serve.tensor_source import TensorSource
from tensorprobe.store.reader import open_dump
from tests.replay.program import make_program
from tests.replay.test_completion import record

NAME = "Functional.linear.0.forward.output.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dumps")
    for task in ("tensor", "replay", "statistics"):
        record(path, "attention", task)
    return path


@pytest.fixture
def replayed(folder: Path) -> Iterator[TensorSource]:
    source = TensorSource(open_dump(folder / "replay"))
    yield source
    source.close()


def _rank(source: TensorSource) -> tensor_source.RankDump:
    return next(iter(source.dump.ranks()))


def test_what_task_replay_left_out_is_computed_as_task_tensor_saves_it(folder: Path, replayed: TensorSource) -> None:
    saved = TensorSource(open_dump(folder / "tensor"))
    expected = saved.open_value(_rank(saved), NAME)
    assert not (_rank(replayed).folder / "dump_tensor_data" / f"{NAME}.pt").exists()
    np.testing.assert_array_equal(replayed.open_value(_rank(replayed), NAME), expected)


def test_a_step_is_executed_again_once_and_what_it_wrote_goes_away(replayed: TensorSource) -> None:
    with mock.patch.object(tensor_source, "completed", wraps=tensor_source.completed) as completed:
        replayed.open_value(_rank(replayed), NAME)
        replayed.open_value(_rank(replayed), "Functional.linear.1.forward.output.0")
    completed.assert_called_once()
    computed = replayed._step(_rank(replayed)).computed
    assert isinstance(computed, tensor_source.RankDump)
    assert computed.folder.is_dir()
    replayed.close()
    assert not computed.folder.exists()


def test_a_machine_that_gives_other_bits_says_so_each_time_and_tries_once(replayed: TensorSource) -> None:
    refusal = NotRepeatedError("step0/rank does not come out as recorded when it is executed again here")
    with mock.patch.object(tensor_source, "completed", side_effect=refusal) as completed:
        for _ in range(2):
            with pytest.raises(UsageError, match="does not come out as recorded"):
                replayed.open_value(_rank(replayed), NAME)
    completed.assert_called_once()


def test_a_run_of_statistics_has_no_tensors_and_says_what_to_record(folder: Path) -> None:
    source = TensorSource(open_dump(folder / "statistics"))
    with pytest.raises(UsageError, match='Record with task "replay" or "tensor"'):
        source.open_value(_rank(source), NAME)


def test_any_tensor_of_a_replayed_run_is_drawn(replayed: TensorSource) -> None:
    shown = ShownRun(build_run_page(replayed.dump), replayed)
    details = [shown.describe_row(row) for row in range(len(shown.page["rows"]["call"]))]
    reasons = [detail["reason"] for detail in details if "reason" in detail]
    assert [reason for reason in reasons if "memory that nobody had written to" not in reason] == []
    assert sum(detail["histogram"] is not None for detail in details) > 50


def test_the_page_of_a_run_says_where_it_loses_its_digits(folder: Path) -> None:
    page = build_run_page(open_dump(folder / "tensor"), tensorprobe.truth(folder / "tensor").runs)
    lost = page["run"]["lost_digits"]
    assert len(lost) > 20
    assert all(0 <= one["digits"] < 7 for one in lost)
    assert max(one["digits"] for one in lost) > 0
    assert {one["call"] for one in lost} <= set(range(len(page["calls"]["place"])))
    told = page["run"]["truth"]
    assert told["is_right"] and "loss" in told["headline"] + " ".join(told["evidence"])


def test_the_page_of_a_run_has_the_gradient_of_every_parameter(folder: Path) -> None:
    model, _ = make_program("attention")
    found = {one["parameter"]: one["norm"] for one in build_run_page(open_dump(folder / "tensor"))["run"]["gradients"]}
    assert found.keys() == {name for name, _ in model.named_parameters()}
    assert min(found.values()) > 0
