"""Comparisons on a real Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tensorprobe.compare.measure import ray_engine
from tensorprobe.compare.measure.memory_bound import memory_bounded
from tensorprobe.compare.measure.task import MeasureTask
from tensorprobe.errors import UsageError
from tests.compare.tensor_slot import make_slot
from tests.length import wait_until
from tests.remote.dump import write_run

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    found.add_node(num_cpus=1)
    environment = {"env_vars": {"PYTHONPATH": str(_ROOT)}}
    ray.init(address=found.address, runtime_env=environment, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()


def make_tasks(folder: Path, count: int) -> list[MeasureTask]:
    """The error of each pair is its number."""
    np.save(folder / "reference.npy", np.zeros(3, np.float32))
    tasks = []
    for number in range(count):
        np.save(folder / f"{number}.npy", np.full(3, number, np.float32))
        slot = make_slot(shape=(3,))
        tasks.append(MeasureTask(slot, slot, folder / "reference.npy", folder / f"{number}.npy", 1e-4, 1e-4))
    return tasks


def test_two_runs_are_compared_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "good", count=40)
    write_run(tmp_path / "bad", scale=1.5, count=40)
    local = tensorprobe.compare(tmp_path / "good", tmp_path / "bad")
    there = tensorprobe.compare(tmp_path / "good", tmp_path / "bad", engine="ray")
    assert there.verdict.headline == local.verdict.headline
    assert [call.values for call in there.ranks[0].calls] == [call.values for call in local.ranks[0].calls]


def test_a_lost_worker_costs_its_task_and_not_the_run(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    started = tmp_path / "started"
    started.mkdir()
    monkeypatch.setattr(ray_engine, "measure_parcels", _measure_slowly(started))
    killed: list[int] = []

    def kill_one() -> None:
        wait_until(lambda: any(started.iterdir()))
        killed.append(int(next(started.iterdir()).name))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    found = list(ray_engine.RayEngine(ray).measure(make_tasks(tmp_path, 100)))
    thread.join()
    assert [one.max_abs_error for one in found] == list(range(100))
    workers = {int(path.name) for path in started.iterdir()}
    assert len(workers - set(killed)) >= 1  # another one has done the rest


def _measure_slowly(started: Path) -> Any:
    """As it is, but each worker leaves its number, and waits a moment so that it can be killed."""
    measure = ray_engine.measure_parcels

    def measure_slowly(parcels: Any) -> Any:
        import time

        (started / str(os.getpid())).touch()
        time.sleep(1)
        return measure(parcels)

    return measure_slowly


def test_a_pair_that_kills_every_worker_is_compared_by_its_records(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    measure = ray_engine.measure_parcels

    def die(parcels: Any) -> Any:
        if any(parcel.task.candidate_path.name == "2.npy" for parcel in parcels):
            os._exit(1)
        return measure(parcels)

    monkeypatch.setattr(ray_engine, "measure_parcels", die)
    monkeypatch.setattr(ray_engine, "_RETRIES", 1)
    found = list(ray_engine.RayEngine(ray).measure(make_tasks(tmp_path, 5)))
    assert [one.max_abs_error for one in found if one.problem is None and one.fallback is None] == [0, 1, 3, 4]
    assert "the worker that measured it was lost" in str(found[2].problem or found[2].fallback)


def test_a_node_without_the_files_hands_the_pair_back(cluster: Any, tmp_path: Path) -> None:
    (task,) = make_tasks(tmp_path, 1)
    parcel = ray_engine.pack_task(task)
    assert ray_engine.measure_parcels([parcel])[0] is not None
    (tmp_path / "0.npy").rename(tmp_path / "elsewhere.npy")
    assert ray_engine.measure_parcels([parcel]) == [None]


def test_the_memory_of_a_worker_is_bounded() -> None:
    with memory_bounded(64 << 20), pytest.raises(MemoryError):
        np.ones(32 << 20)
    assert np.ones(32 << 20).size  # the bound is gone


def test_an_engine_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="engine is 'spark'"):
        tensorprobe.compare(tmp_path, tmp_path, engine="spark")
