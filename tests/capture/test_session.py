"""A session, whatever the framework is: the window, the steps, the failures inside, the ways to end."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.capture import process
from tensorprobe.capture.session import Session
from tensorprobe.errors import UsageError
from tests.capture.fake import FakeFramework, Numbers, call, make_session
from tests.length import PATIENCE_SECONDS, wait_until


@pytest.fixture
def framework() -> FakeFramework:
    return FakeFramework()


@pytest.fixture
def session(tmp_path: Path, framework: FakeFramework) -> Iterator[Session]:
    made = make_session(tmp_path, framework)
    yield made
    made.close()


def read(tmp_path: Path, name: str = "dump.json", step: int = 0, rank: str = "rank") -> Any:
    return json.loads((tmp_path / f"step{step}" / rank / name).read_text())


def names(tmp_path: Path, step: int = 0) -> list[str]:
    return list(read(tmp_path, step=step)["data"])


def record_step(session: Session) -> None:
    session.start()
    call(session)
    session.stop()
    session.step()


def test_a_window_is_installed_from_start_to_stop(session: Session, framework: FakeFramework) -> None:
    session.start()
    assert framework.installed == ["patch"] and session.is_started
    session.stop()
    assert framework.installed == [] and not session.is_started


def test_step_closes_the_window_and_moves_on(session: Session, framework: FakeFramework, tmp_path: Path) -> None:
    session.start()
    call(session)
    session.step()
    assert framework.installed == [] and session.current_step == 1
    assert names(tmp_path) == ["Torch.sin.0.forward"]


def test_start_twice_installs_once(session: Session, framework: FakeFramework) -> None:
    session.start()
    session.start()
    assert framework.installed == ["patch"]


@pytest.mark.parametrize(("rank", "is_recorded"), [(None, True), (0, True), (1, False)])
def test_the_chosen_ranks_record(rank: int | None, is_recorded: bool, tmp_path: Path) -> None:
    framework = FakeFramework(rank_number=rank)
    session = make_session(tmp_path, framework, rank=[0])
    session.start()
    assert framework.installed == (["patch"] if is_recorded else [])
    session.step()
    assert (tmp_path / "step0" / ("rank" if rank is None else f"rank{rank}")).exists() == is_recorded
    session.close()


def test_the_files_exist_when_nothing_was_called_in_the_window(session: Session, tmp_path: Path) -> None:
    session.start()
    session.stop()
    assert names(tmp_path) == [] and read(tmp_path, "stack.json") == {}


def test_run_json_says_from_the_beginning_whose_dump_it_is(session: Session, tmp_path: Path) -> None:
    session.start()
    run = read(tmp_path, "run.json")
    assert run["framework"] == "fake" and run["complete"] is False and run["pid"] > 0
    session.step()
    assert read(tmp_path, "run.json")["complete"] is True


def test_level_debug_has_no_window(tmp_path: Path, framework: FakeFramework) -> None:
    session = make_session(tmp_path, framework, level="debug")
    session.start()
    assert framework.installed == []
    session.save(Numbers([1.0]), "x")
    session.close()
    assert list(read(tmp_path, "debug.json")["data"]) == ["x.0.debug"]


def test_values_are_not_taken_as_known_where_nobody_watched(session: Session, framework: FakeFramework) -> None:
    session.save(Numbers([1.0]), "x")
    session.save(Numbers([1.0]), "x")
    assert framework.reader.forgotten == 2


# -- failures inside do not reach the program --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["install", "undo", "circumstances", "end_step"])
def test_a_failure_of_the_framework_is_said_once_and_the_program_goes_on(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = make_session(tmp_path, FakeFramework(failures={where: RuntimeError("broken")}))
    for _ in range(2):
        record_step(session)
    session.close()
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and "(RuntimeError: broken)" in said[0].getMessage()
    assert read(tmp_path, "run.json", step=1)["coverage"]["failed"] == 1


def test_a_window_that_could_not_be_installed_leaves_whole_files(tmp_path: Path) -> None:
    session = make_session(tmp_path, FakeFramework(failures={"install": RuntimeError("broken")}))
    session.start()
    session.stop()
    session.step()
    assert names(tmp_path) == [] and not list(tmp_path.rglob("*.part"))


def test_where_nothing_could_be_written_the_message_says_so_and_names_no_command_that_would_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tensorprobe")
    (tmp_path / "step0").write_text("a file where a folder should be")
    session = make_session(tmp_path)
    record_step(session)
    record_step(session)
    session.close()
    first, second = [text for text in caplog.messages if text.startswith("step ")]
    folder = tmp_path / "step0" / "rank"
    assert first.startswith("step 0: 0 records and ")
    assert first.endswith(
        f"in {folder}. Nothing of it is on disk: make that folder writable, free space, or choose another dump_path"
    )
    assert second.endswith(f"Next: tensorprobe show {tmp_path / 'step1' / 'rank'}")


def test_the_failures_of_a_step_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "step0").write_text("a file where a folder should be")
    session = make_session(tmp_path)
    record_step(session)
    record_step(session)
    session.close()
    assert read(tmp_path, "run.json", step=1)["coverage"]["failed"] == 0


def test_a_wrong_model_raises(session: Session) -> None:
    with pytest.raises(UsageError, match="a model is a text here"):
        session.start(3)


# -- the ways to end ---------------------------------------------------------------------------------------------------


def test_close_writes_everything_and_can_be_called_again(session: Session, tmp_path: Path) -> None:
    session.start()
    call(session)
    session.save(3, "x")
    session.close()
    session.close()
    assert names(tmp_path) == ["Torch.sin.0.forward"] and read(tmp_path, "run.json")["complete"] is True
    assert list(read(tmp_path, "debug.json")["data"]) == ["x.0.debug"]


def test_close_in_a_window_in_which_nothing_happened_leaves_nothing(session: Session, tmp_path: Path) -> None:
    record_step(session)
    session.start()
    session.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step0"]


def test_after_close_start_is_an_error_and_save_does_nothing(session: Session, tmp_path: Path) -> None:
    session.close()
    with pytest.raises(UsageError, match="this debugger is closed"):
        session.start()
    session.save(1, "x")
    assert list(tmp_path.iterdir()) == []


def test_close_ends_the_threads(tmp_path: Path) -> None:
    before = threading.active_count()
    session = make_session(tmp_path, task="tensor")
    session.start()
    call(session)
    assert threading.active_count() == before + 3
    session.close()
    assert threading.active_count() == before


def test_abandon_writes_nothing_and_takes_back_what_was_installed(
    session: Session, framework: FakeFramework, tmp_path: Path
) -> None:
    session.start()
    call(session)
    session.abandon()
    call(session)
    session.stop()
    session.step()
    session.close()
    assert framework.installed == []
    assert sorted(path.name for path in (tmp_path / "step0" / "rank").iterdir()) == [
        "construct.json.part",
        "dump.json.part",
        "run.json",
    ]
    assert "Torch.sin" not in (tmp_path / "step0" / "rank" / "dump.json.part").read_text()


def test_sigterm_is_handled_while_a_step_is_open_and_by_one_handler(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    first, second = make_session(tmp_path / "a"), make_session(tmp_path / "b")
    first.start()
    second.save(1, "x")
    assert signal.getsignal(signal.SIGTERM) is process._handle
    first.step()
    assert signal.getsignal(signal.SIGTERM) is process._handle
    second.step()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    first.close()
    second.close()


def test_sigterm_closes_every_session_before_it_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(process.os, "kill", lambda _, number: killed.append(number))
    sessions = [make_session(tmp_path / name) for name in ("a", "b")]
    for session in sessions:
        session.start()
        call(session)
        session.stop()
    sessions[1].start()
    signal.raise_signal(signal.SIGTERM)
    assert killed == [signal.SIGTERM] and all(session.is_closed for session in sessions)
    assert names(tmp_path / "a") == names(tmp_path / "b") == ["Torch.sin.0.forward"]


def test_sigterm_in_the_middle_of_a_flush_acts_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.os, "kill", lambda *_: None)
    framework = FakeFramework()
    session = make_session(tmp_path, framework)
    session.start()
    for _ in range(3):
        call(session)
    arrived: list[None] = []

    def receive_signal() -> None:
        if not arrived:
            arrived.append(signal.raise_signal(signal.SIGTERM))

    monkeypatch.setattr(session._sink, "_fetch", receive_signal)
    session._sink.flush()
    assert session.is_closed and len(names(tmp_path)) == 3


def test_where_a_device_still_computes_another_thread_makes_the_files_whole(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_fetch, reader = threading.Event(), session._reader
    original = reader.fetch
    monkeypatch.setattr(reader, "begin_fetch", lambda: True)
    monkeypatch.setattr(reader, "fetch", lambda: (may_fetch.wait(PATIENCE_SECONDS), original()))
    session.start()
    call(session)
    session.stop()  # the program goes on
    assert not list(tmp_path.glob("step0/*/dump.json"))
    may_fetch.set()
    wait_until(lambda: list(tmp_path.glob("step0/*/dump.json")) != [])
    session.step()
