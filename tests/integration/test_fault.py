"""What goes wrong inside a capture does not reach the program: the training goes on, bit for bit, and it is said once.

Failures are put into every method on the way from a record to its file; disks are really full, really read-only and
really slow.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from tensorprobe.capture import process, tensor_queue
from tensorprobe.capture.sink import Sink
from tensorprobe.capture.tensor_queue import TensorQueue
from tensorprobe.capture.torch.framework import TorchFramework
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.store.reader import Dump, open_dump
from tensorprobe.store.writer import RankWriter
from tests.capture.torch.training import Observed, difference, open_session, recorded_step, train
from tests.integration.script import PREAMBLE, messages, run_script

STEPS = 3
ALWAYS = 10**9


def public_methods(cls: type) -> list[str]:
    return [name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")]


METHODS = [(cls, name) for cls in (Sink, RankWriter, TensorQueue) for name in public_methods(cls)]
UNUSED = {
    *("discard", "abandon", "add_debug", "append_debug", "flush_if_due", "flush_unless_held"),
    *("hold", "put_number", "release"),
}
"""They are not called in this training. They have tests of their own, but for hold and release: those need a GPU."""


class Fault:
    """A method that fails, so many times."""

    def __init__(self, cls: type, name: str, times: int, patched: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = getattr(cls, name)

        def fail(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count <= times:
                raise RuntimeError("put in by the test")
            return original(*args, **kwargs)

        patched.setattr(cls, name, fail)


@pytest.fixture(scope="module")
def plain() -> Observed:
    return train("cnn")


@pytest.fixture(scope="module")
def recorded_names(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    folder = tmp_path_factory.mktemp("whole")
    train_recorded(folder)
    return names_of(open_dump(folder))


def train_recorded(folder: Path, **options: Any) -> Observed:
    session = open_session(folder, **{"level": "mix", "task": "tensor", **options})
    try:
        return train("cnn", lambda model: recorded_step(session, model))
    finally:
        session.close()


def names_of(dump: Dump) -> list[list[str]]:
    return [[record.name for record in rank.records()] for rank in dump.ranks()]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def failed_counts(dump: Dump) -> list[int]:
    return [rank.run["coverage"]["failed"] for rank in dump.ranks() if rank.run]


# -- a failure in every method -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "name"), [method for method in METHODS if method[1] not in UNUSED])
@pytest.mark.some(3)
def test_a_failure_that_passes_is_said_once_and_counted_and_what_comes_later_is_written(
    cls: type,
    name: str,
    plain: Observed,
    recorded_names: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(TorchFramework, "has_idle_core", lambda self: name != "write_tensor")
    fault = Fault(cls, name, 1, monkeypatch)
    assert difference(plain, train_recorded(tmp_path)) == [] and fault.count
    assert len(said(caplog)) == 1 and "RuntimeError: put in by the test" in said(caplog)[0]
    if (cls, name) == (TensorQueue, "close"):
        return  # the very last thing a session does: nothing is written after it
    dump = open_dump(tmp_path)
    assert names_of(dump)[-1] == recorded_names[-1]
    assert sum(failed_counts(dump)) > 0 or name == "close"  # what ends a file fails after its run.json was made up
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(("cls", "name"), [method for method in METHODS if method[1] not in UNUSED])
@pytest.mark.some(3)
def test_a_failure_that_stays_says_nothing_twice_and_the_training_is_the_same(
    cls: type,
    name: str,
    plain: Observed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(TorchFramework, "has_idle_core", lambda self: name != "write_tensor")
    fault = Fault(cls, name, ALWAYS, monkeypatch)
    assert difference(plain, train_recorded(tmp_path)) == [] and fault.count
    assert said(caplog) and len(said(caplog)) == len(set(said(caplog)))


@pytest.mark.parametrize(("cls", "name"), [(Sink, "add_debug"), (RankWriter, "append_debug")])
def test_a_saved_variable_that_cannot_be_written_is_said_once(
    cls: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Fault(cls, name, 1 if cls is Sink else 2, monkeypatch)  # what fails together is tried again one by one
    session = open_session(tmp_path, level="debug")
    for step in range(2):
        session.save(torch.ones(2) * step, "x")
        session.step()
    session.close()
    assert len(said(caplog)) == 1
    assert [saved.name for saved in list(open_dump(tmp_path).ranks())[-1].saved_values()] == ["x.0.debug"]


@pytest.mark.parametrize("cls", [Sink, RankWriter])
def test_a_window_without_calls_that_cannot_be_taken_back_is_said_once(
    cls: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Fault(cls, "discard", ALWAYS, monkeypatch)
    session = open_session(tmp_path)
    session.start()
    session.close()
    assert len(said(caplog)) == 1 and session.is_closed


class CannotLetGo:
    """Something that is followed besides, and that fails in a forked child."""

    is_started = False

    def close(self, ending: str | None = None) -> None:
        """Nothing is open."""

    def abandon(self) -> None:
        raise OSError("cannot let go")

    def defer(self, action: object) -> bool:
        return False


@pytest.mark.parametrize("cls", [RankWriter, TensorQueue])
def test_a_forked_child_goes_on_when_letting_go_fails(
    cls: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fault(cls, "abandon", ALWAYS, monkeypatch)
    others = [CannotLetGo() for _ in range(20)]  # a set of them has no order
    for other in others:
        process.follow(other)
    session = open_session(tmp_path)
    session.start()
    torch.ones(2)
    child = os.fork()
    if not child:
        is_free = session.is_closed and not session.is_started and torch._C._len_torch_function_stack() == 0
        os._exit(0 if is_free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.close()


def test_every_public_method_has_its_test() -> None:
    assert {"add_record", "flush", "open", "open_dump", "close"} <= {name for cls, name in METHODS if cls is Sink}
    assert {name for _, name in METHODS} >= UNUSED


# -- a disk that is full, or must not be written -----------------------------------------------------------------------

TRAINING = (
    PREAMBLE
    + """
import resource, tempfile

def train(start=lambda step: None, stop=lambda step: None):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(6):
        start(step, model) if start.__code__.co_argcount == 2 else start(step)
        loss = model(torch.randn(16, 32)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stop(step)
    return [loss.detach(), torch.get_rng_state(), *model.parameters()]

def check(dump_path, before=lambda step: None, after=lambda step: None):
    plain = train()
    debugger = PrecisionDebugger(dump_path=dump_path, level="mix", task="tensor", min_free=0)
    def start(step, model):
        before(step)
        debugger.start(model)
    def stop(step):
        debugger.stop()
        after(step)
        debugger.step()
    recorded = train(start, stop)
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
    print("the same")
"""
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_one_message_says_so_and_training_goes_on(small_disk: Path, tmp_path: Path) -> None:
    ended = run_script(tmp_path, TRAINING + "check(sys.argv[1] + '/dump')", str(small_disk))
    complaints = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout == "the same\n" and len(complaints) == 1
    assert "(OSError: [Errno 28] No space left on device); training goes on" in complaints[0]
    dump = open_dump(small_disk / "dump")
    assert not any(rank.problems for rank in dump.ranks() if rank.dump_file)
    assert next(dump.ranks()).is_complete and not list(small_disk.rglob("*.tmp"))
    assert any(rank.run["complete"] and rank.run["coverage"]["failed"] for rank in dump.ranks() if rank.run)
    assert "failures in" in ended.stderr  # in the line of the step


def test_a_limit_on_the_size_of_files_is_said_once_and_lifted_again_recording_goes_on(tmp_path: Path) -> None:
    script = """
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

check("dump", lambda step: limit(4000) if step == 2 else None, lambda step: limit(-1) if step == 3 else None)
"""
    ended = run_script(tmp_path, TRAINING + script)
    complaints = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout == "the same\n" and len(complaints) == 1 and "[Errno 27] File too large" in complaints[0]
    ranks = list(open_dump(tmp_path / "dump").ranks())
    counts = failed_counts(open_dump(tmp_path / "dump"))
    assert [bool(count) for count in counts] == [False, False, True, True, False, False]
    assert all(ranks[step].is_complete and not ranks[step].problems for step in (0, 1, 4, 5))
    assert names_of(open_dump(tmp_path / "dump"))[5] == names_of(open_dump(tmp_path / "dump"))[1]


def test_in_a_folder_that_becomes_read_only_one_message_says_so_and_training_goes_on(tmp_path: Path) -> None:
    script = """
train()  # imports what torch imports late
folder = tempfile.mkdtemp()
if os.getuid() == 0:  # who may write everywhere
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
os.mkdir(folder + "/dump")
mode = {2: 0o555, 4: 0o755}
check(folder + "/dump", lambda step: os.chmod(folder + "/dump", mode[step]) if step in mode else None)
os.seteuid(os.getuid())
os.rename(folder, "moved") if os.stat(folder).st_dev == os.stat(".").st_dev else os.system(f"cp -a {folder} moved")
"""
    ended = run_script(tmp_path, TRAINING + script)
    complaints = [line for line in messages(ended) if "could not be written" in line]
    assert ended.stdout == "the same\n" and len(complaints) == 1 and "[Errno 13] Permission denied" in complaints[0]
    ranks = {rank.step: rank for rank in open_dump(tmp_path / "moved" / "dump").ranks()}
    assert sorted(ranks, key=str) == [0, 1, 4, 5] and all(rank.is_complete for rank in ranks.values())


# -- a disk that is slow -----------------------------------------------------------------------------------------------


class SlowDisk:
    """Writes two megabytes a second, and counts how much memory is held by what waits for it."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.held_bytes = self.most_held_bytes = self.written_bytes = 0
        self._lock = threading.Lock()
        copy, write_file = TorchReader.copy, TorchReader.write_file

        def counted_copy(reader: TorchReader, tensor: torch.Tensor) -> Any:
            made = copy(reader, tensor)
            size_bytes = reader.size_bytes(tensor)
            weakref.finalize(made._tensor, self._count, -size_bytes)
            self._count(size_bytes)
            return made

        def slow_write(reader: TorchReader, made: Any, file: BinaryIO) -> None:
            write_file(reader, made, file)
            size_bytes = file.tell()
            time.sleep(size_bytes / 2_000_000)
            self.written_bytes += size_bytes

        patched.setattr(TorchReader, "copy", counted_copy)
        patched.setattr(TorchReader, "write_file", slow_write)

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            self.held_bytes += size_bytes
            self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async_dump"])
def test_a_slow_disk_holds_the_training_back_and_not_the_memory(
    is_async: bool, plain: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = 40_000
    monkeypatch.setattr(tensor_queue, "ASYNC_QUEUE_BYTES" if is_async else "QUEUE_BYTES", limit_bytes)
    disk = SlowDisk(monkeypatch)
    assert difference(plain, train_recorded(tmp_path, async_dump=is_async)) == []
    assert disk.written_bytes > 10 * limit_bytes
    assert disk.most_held_bytes <= 2 * limit_bytes  # what waits, what is being written and what is being put
    dump = open_dump(tmp_path)
    assert len(names_of(dump)) == STEPS and all(rank.is_complete for rank in dump.ranks())
    assert failed_counts(dump) == [0] * STEPS


def test_records_that_wait_for_a_slow_disk_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_queue, "QUEUE_BYTES", 100 * 1024)  # a hundred small files
    SlowDisk(monkeypatch)
    waiting: list[int] = []
    add: Callable[..., None] = Sink.add_record

    def counted_add(sink: Sink, *args: Any) -> None:
        add(sink, *args)
        waiting.append(len(sink._records))

    monkeypatch.setattr(Sink, "add_record", counted_add)
    session = open_session(tmp_path, task="tensor", level="L1")
    x = torch.ones(8)
    session.start()
    for _ in range(2000):
        x = x * 1.0
    session.close()
    assert len(waiting) == 2000 and max(waiting) < 256 + 100
    assert json.loads((tmp_path / "step0" / "rank" / "run.json").read_text())["coverage"]["failed"] == 0
