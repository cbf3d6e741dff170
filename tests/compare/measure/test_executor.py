"""Tasks come back in order from one process or several; nothing is measured twice, and nothing is left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.measure import executor, worker_pool
from tensorprobe.compare.measure import task as task_file
from tensorprobe.compare.measure.executor import MeasureTask, make_task, measure_task, run_tasks
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.errors import UsageError
from tensorprobe.store.reader import RankDump
from tests.compare.deadly import DeadlyShape
from tests.compare.tensor_slot import make_slot
from tests.length import PATIENCE_SECONDS, wait_until


def write(path: Path, value: float, count: int = 3) -> Path:
    np.save(path, np.full(count, value, np.float32))
    return path


def task(reference: Path | None, candidate: Path | None, **fields: Any) -> MeasureTask:
    slot = make_slot(**{"shape": (3,), **fields})
    return MeasureTask(slot, slot, reference, candidate, 1e-4, 1e-4)


@pytest.fixture
def tasks(tmp_path: Path) -> list[MeasureTask]:
    """100 pairs; the error of each is its number."""
    zero = write(tmp_path / "zero.npy", 0.0)
    return [task(zero, write(tmp_path / f"{number}.npy", float(number))) for number in range(100)]


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small work is worth a process."""
    monkeypatch.setattr(executor, "_SECONDS_PER_PROCESS", 1e-9)


def errors(measured: Any) -> list[float]:
    return [found.max_abs_error for found in measured]


def test_tasks_come_back_in_order(tasks: list[MeasureTask]) -> None:
    assert errors(run_tasks(tasks)) == list(map(float, range(100)))


@pytest.mark.usefixtures("in_processes")
def test_several_processes_give_the_same_as_one(tasks: list[MeasureTask], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [measure_task(one) for one in tasks]
    monkeypatch.setattr(worker_pool, "measure_task", None)  # nothing is measured here
    assert list(run_tasks(tasks, processes=2)) == expected


def test_little_work_starts_no_process(tasks: list[MeasureTask], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert len(list(run_tasks(tasks, processes=8))) == 100


@pytest.mark.usefixtures("in_processes")
def test_tasks_without_files_stay_here_and_in_their_place(tasks: list[MeasureTask]) -> None:
    statistics = task(None, None, max=1.0, min=0.0, mean=0.5, norm=2.0)
    mixed = [one for pair in zip(tasks[:10], [statistics] * 10, strict=True) for one in pair]
    assert [found.basis for found in run_tasks(mixed, processes=2)] == ["tensor", "statistics"] * 10


def test_the_same_two_files_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, candidate = write(tmp_path / "r.npy", 1.0), write(tmp_path / "c.npy", 2.0)
    (tmp_path / "r2.npy").hardlink_to(reference)
    (tmp_path / "c2.npy").hardlink_to(candidate)
    copy = write(tmp_path / "copy.npy", 2.0)
    measured: list[MeasureTask] = []

    def count(one: MeasureTask) -> Measurement:
        measured.append(one)
        return measure_task(one)

    monkeypatch.setattr(executor, "measure_task", count)
    other_shape = task(tmp_path / "r.npy", tmp_path / "c.npy", shape=(1, 3))
    all_tasks = [task(reference, candidate), task(tmp_path / "r2.npy", tmp_path / "c2.npy"), task(candidate, reference)]
    all_tasks += [task(reference, copy), other_shape, task(reference, candidate)]
    found = list(run_tasks(all_tasks))
    assert measured == [all_tasks[0], all_tasks[2], all_tasks[3], all_tasks[4]]
    assert found[0] == found[1] == found[5] and found[0].max_abs_error == 1.0
    assert found[4].problem is not None


def test_a_problem_of_a_linked_file_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    reference = write(tmp_path / "r.npy", 1.0)
    (tmp_path / "first.npy").write_bytes(reference.read_bytes()[:-1])
    (tmp_path / "second.npy").hardlink_to(tmp_path / "first.npy")
    found = run_tasks([task(reference, tmp_path / "first.npy"), task(reference, tmp_path / "second.npy")])
    assert [one.problem for one in found] == ["first.npy is cut off", "second.npy is cut off"]


def test_a_missing_file_is_one_row_and_not_the_end(tasks: list[MeasureTask], tmp_path: Path) -> None:
    tasks[1] = task(tasks[0].reference_path, tmp_path / "gone.npy")
    found = list(run_tasks(tasks[:3]))
    assert [one.problem for one in found] == [None, "gone.npy is missing", None]


def test_a_file_name_that_leads_out_of_the_dump_is_one_row(tmp_path: Path) -> None:
    rank = RankDump(tmp_path, tmp_path.resolve(), 0, None, None, None)
    slot = make_slot(shape=(3,), data_name="../../x.npy")
    found = measure_task(make_task(slot, slot, rank, rank, 0.0, 0.0))
    assert "not a plain file name" in str(found.problem)


def test_two_slots_of_dumps_become_a_task(tmp_path: Path) -> None:
    (tmp_path / "dump_tensor_data").mkdir()
    path = write(tmp_path / "dump_tensor_data" / "x.npy", 1.0)
    rank = RankDump(tmp_path, tmp_path.resolve(), 0, None, None, None)
    made = make_task(make_slot(data_name="x.npy"), make_slot(), rank, rank, 0.5, 0.25)
    assert (made.reference_path, made.candidate_path, made.rtol, made.atol) == (path, None, 0.5, 0.25)


def test_a_linked_file_that_cannot_be_read_is_judged_by_each_of_its_records(tmp_path: Path) -> None:
    reference = write(tmp_path / "r.npy", 1.0)
    (tmp_path / "first.npy").write_bytes(reference.read_bytes()[:-1])
    (tmp_path / "second.npy").hardlink_to(tmp_path / "first.npy")
    one = make_slot(shape=(3,), max=1.0, min=1.0, mean=1.0, norm=3**0.5)
    other = make_slot(shape=(3,), max=99999.0, min=1.0, mean=1.0, norm=3**0.5)
    records = (("first.npy", one), ("second.npy", other))
    linked = [MeasureTask(one, record, reference, tmp_path / name, 1e-4, 1e-4) for name, record in records]
    found = list(run_tasks(linked))
    assert [measured.is_equal for measured in found] == [True, False]
    assert [measured.fallback for measured in found] == ["first.npy is cut off", "second.npy is cut off"]


def test_a_tensor_too_large_for_the_memory_is_judged_by_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(task_file, "measure_slots", run_out)
    found = measure_task(task(write(tmp_path / "r.npy", 1.0), write(tmp_path / "c.npy", 1.0), max=1.0, min=1.0))
    assert (found.basis, found.is_equal) == ("statistics", True)
    assert found.fallback == "too large for the memory of this machine"


@pytest.mark.usefixtures("in_processes")
def test_what_a_killed_worker_was_at_is_measured_again(tasks: list[MeasureTask], tmp_path: Path) -> None:
    for number in (7, 60):
        shape = DeadlyShape((3,), scar=tmp_path / f"scar{number}")
        tasks[number] = task(tasks[number].reference_path, tasks[number].candidate_path, shape=shape)
    assert errors(run_tasks(tasks, processes=2)) == list(map(float, range(100)))
    assert (tmp_path / "scar7").exists() and (tmp_path / "scar60").exists()


@pytest.mark.usefixtures("in_processes")
def test_what_kills_every_worker_is_judged_by_its_record(tasks: list[MeasureTask]) -> None:
    fields = {"max": 1.0, "min": 1.0, "shape": DeadlyShape((3,))}
    tasks[7] = task(tasks[7].reference_path, tasks[7].candidate_path, **fields)
    found = list(run_tasks(tasks, processes=2))[7]
    assert (found.basis, found.is_equal) == ("statistics", True)
    assert found.fallback == "the process that measured it died (exit code -9), 3 times: too little memory?"


@pytest.mark.usefixtures("in_processes")
def test_a_worker_that_dies_costs_the_pair_that_it_was_at(tasks: list[MeasureTask]) -> None:
    deadly = (7, 8, 60)
    for number in deadly:
        tasks[number] = task(tasks[number].reference_path, tasks[number].candidate_path, shape=DeadlyShape((3,)))
    found = list(run_tasks(tasks, processes=2))
    assert [number for number, one in enumerate(found) if one.problem] == list(deadly)
    assert all("died (exit code -9)" in str(found[number].problem) for number in deadly)
    assert [one.max_abs_error for one in found if not one.problem] == [
        float(number) for number in range(100) if number not in deadly
    ]


@pytest.mark.usefixtures("in_processes")
def test_where_no_process_can_be_started_the_work_is_done_here(
    tasks: list[MeasureTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_START", "raise SystemExit(3)")
    assert errors(run_tasks(tasks, processes=2)) == list(map(float, range(100)))


@pytest.mark.usefixtures("in_processes")
def test_a_missing_package_ends_the_comparison_with_its_name(
    tasks: list[MeasureTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "import sys; sys.modules['ml_dtypes'] = None; " + worker_pool._START
    monkeypatch.setattr(worker_pool, "_START", start)
    tasks[3] = task(*[Path(__file__).parents[2] / "store/tensor_file/bfloat16.pt"] * 2, shape=(2, 3))
    with pytest.raises(UsageError, match=r'bfloat16 needs ml_dtypes .* pip install "tensorprobe\[compare\]"'):
        list(run_tasks(tasks, processes=2))


def workers() -> list[int]:
    """The processes that this one has started and that still are."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(status[1]) == os.getpid() and status[0] != "Z":
                found.append(int(folder.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")


@needs_proc
@pytest.mark.usefixtures("in_processes")
def test_whoever_stops_early_leaves_no_process_and_no_thread(tasks: list[MeasureTask]) -> None:
    before, threads = set(workers()), threading.active_count()
    measured = run_tasks(tasks, processes=2)
    assert next(measured).max_abs_error == 0.0
    assert len(set(workers()) - before) >= 1
    measured.close()  # type: ignore[attr-defined]
    assert set(workers()) == before
    assert threading.active_count() == threads


SCRIPT = """
import sys
from pathlib import Path
from tensorprobe.compare.measure import executor
from tests.compare.measure.test_executor import task
executor._SECONDS_PER_PROCESS = 1e-9
folder = Path(sys.argv[1])
count = int(sys.argv[2])
tasks = [task(folder / f"r{number}.npy", folder / f"c{number}.npy", shape=(count,)) for number in range(4)]
print("running", flush=True)
for found in executor.run_tasks(tasks, processes=2):
    print(found.problem or found.max_abs_error, flush=True)
"""


def start_script(folder: Path, count: int) -> subprocess.Popen[str]:
    """A script without `if __name__ == "__main__"`, as people write them."""
    path = folder / "script.py"
    path.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(path), str(folder), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def test_a_script_without_a_main_guard_can_compare(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"r{number}.npy", 0.0)
        write(tmp_path / f"c{number}.npy", float(number))
    output, complaint = start_script(tmp_path, 3).communicate()
    assert (output.split(), complaint) == (["running", "0.0", "1.0", "2.0", "3.0"], "")


def children_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for file in children for pid in file.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def make_long_work(folder: Path) -> int:
    """Files with holes: made at once, and too large to be done before the test ends."""
    count = 1 << 36
    for number in range(4):
        for side in "rc":
            with (folder / f"{side}{number}.npy").open("wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count,)})
                file.truncate(file.tell() + count * 4)
    return count


@needs_proc
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_or_death_ends_all_workers(tmp_path: Path, kind: signal.Signals) -> None:
    with start_script(tmp_path, make_long_work(tmp_path)) as script:
        try:
            assert script.stdout is not None and script.stdout.readline() == "running\n"
            wait_until(lambda: len(children_of(script.pid)) == 2)
            pids = children_of(script.pid)
            script.send_signal(kind)
            _, complaint = script.communicate(timeout=PATIENCE_SECONDS)
        finally:
            script.kill()
    assert script.returncode == -kind if kind == signal.SIGKILL else "KeyboardInterrupt" in complaint
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_worker_whose_answers_nobody_reads_ends_in_silence(tasks: list[MeasureTask]) -> None:
    command = [sys.executable, "-c", "from tensorprobe.compare.measure.worker import main; main()"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=variables) as worker:
        assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
        assert pickle.load(worker.stdout) == "ready"
        worker.stdout.close()
        pickle.dump(tasks, worker.stdin)
        worker.stdin.flush()  # and stays open: the end of the input would end the worker too
        assert (worker.wait(timeout=PATIENCE_SECONDS), worker.stderr.read()) == (0, b"")


MEMORY = """
import resource, sys
from pathlib import Path
from tests.compare.measure.test_executor import task
from tensorprobe.compare.measure.executor import measure_task
folder, count = Path(sys.argv[1]), int(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = measure_task(task(folder / "r0.npy", folder / "c0.npy", shape=(count,)))
assert found.element_count == count and found.is_equal, found
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units elsewhere")
def test_large_files_do_not_fill_the_memory(tmp_path: Path) -> None:
    count = 1 << 27
    for name in ("r0.npy", "c0.npy"):
        with (tmp_path / name).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|b1", "fortran_order": False, "shape": (count,)})
            file.truncate(file.tell() + count)
    command = [sys.executable, "-c", MEMORY, str(tmp_path), str(count)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 80 * 1024  # KiB; the two files have 256 MiB
