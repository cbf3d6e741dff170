"""Recording stops before a disk is full: the program goes on, and what was recorded can be read."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tensorprobe.capture.session import Session
from tests.capture.fake import Numbers, call, make_session

DiskUsage = namedtuple("DiskUsage", "total used free")


def record_steps(session: Session, count: int, calls: int = 3) -> None:
    for _ in range(count):
        session.start()
        for number in range(calls if session.is_started else 0):
            call(session, "Torch.sin", Numbers([float(number)] * 100))
        session.stop()
        session.step()


def run_of(folder: Path, step: int) -> Any:
    return json.loads((folder / f"step{step}" / "rank" / "run.json").read_text())


def records_of(folder: Path, step: int) -> dict[str, Any]:
    records: dict[str, Any] = json.loads((folder / f"step{step}" / "rank" / "dump.json").read_text())["data"]
    return records


def test_recording_stops_at_max_disk_and_the_program_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = make_session(tmp_path, task="tensor", max_disk="20kB")
    record_steps(session, 20, calls=5)
    session.close()
    steps = sorted(int(path.name[4:]) for path in tmp_path.glob("step*"))
    last = steps[-1]
    assert steps == list(range(last + 1)) and 0 < last < 19
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.txt")) < 20_000
    (text,) = [text for text in caplog.messages if "recording stops" in text]
    assert text == (
        f'recording stops in step {last}, and the program goes on: "max_disk" allows 20 kB, and the next record would '
        f"need more. What was recorded until now can be read in {tmp_path}; the rest of this step and all later steps "
        "are left out. To record more, free space, choose fewer steps or calls, or change that limit"
    )
    assert run_of(tmp_path, 0)["complete"] is True
    run = run_of(tmp_path, last)
    assert run["complete"] is False and run["ended"].startswith('its limit of disk space ("max_disk" allows 20 kB')


def test_every_file_that_a_record_names_is_there_when_the_limit_is_reached(tmp_path: Path) -> None:
    session = make_session(tmp_path, task="tensor", max_disk="12kB")
    record_steps(session, 3, calls=30)
    session.close()
    (step,) = [path for path in tmp_path.glob("step*") if not run_of(tmp_path, int(path.name[4:]))["complete"]]
    records = records_of(tmp_path, int(step.name[4:]))
    leaves = [leaf for record in records.values() for leaf in (*record["input_args"], *record["output"])]
    files = {path.name for path in (step / "rank" / "dump_tensor_data").iterdir()}
    assert {leaf["data_name"] for leaf in leaves if "data_name" in leaf} <= files
    assert 0 < len(records) < 30
    unseen = run_of(tmp_path, int(step.name[4:]))["coverage"]["unseen"]
    assert unseen == {"call after the limit of disk space was reached": 30 - len(records)}


def test_recording_stops_while_min_free_is_still_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 10**12 - 10**9, 10**9))
    session = make_session(tmp_path, min_free="2GB")
    record_steps(session, 3)
    session.close()
    assert [path.name for path in tmp_path.glob("step*")] == ["step0"]
    assert f'1 GB are free in {tmp_path}, and "min_free" keeps 2 GB' in caplog.text


@pytest.mark.parametrize(("total", "free", "is_recorded"), [(10**12, 10**8, False), (10**8, 10**7, True)])
def test_without_a_limit_1_gb_stays_free_and_less_on_a_small_disk(
    total: int, free: int, is_recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(total, total - free, free))
    session = make_session(tmp_path)
    record_steps(session, 2)
    session.close()
    assert (tmp_path / "step1").exists() == is_recorded


@pytest.mark.parametrize(
    ("step", "rest"),
    [
        ([0, "5-8"], ". The 4 configured steps after it need about TOTAL kB"),
        ("every 5", ", and each further step needs about as much"),
        (None, ", and each further step needs about as much"),
        ([0], ""),
    ],
)
def test_after_the_first_step_with_tensors_the_log_says_what_a_step_writes_and_what_the_rest_needs(
    step: Any, rest: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tensorprobe")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 0, 10**12))
    session = make_session(tmp_path, task="tensor", step=step)
    record_steps(session, 7)
    session.close()
    said = [text for text in caplog.messages if " wrote " in text]
    size = said[0].split(" wrote ")[1].split(" in ")[0]
    number, unit = size.split()
    pattern = re.escape(f"step 0 wrote {size} in 3 records{rest}; 1 TB are free").replace("TOTAL", "([0-9.]+)")
    total = re.fullmatch(pattern, said[0])
    assert total is not None
    assert all(float(one) == pytest.approx(4 * float(number), rel=0.01) for one in total.groups())
    written = sum(path.stat().st_size for path in (tmp_path / "step0").rglob("*") if path.is_file())
    assert float(number) * {"kB": 1000, "B": 1}[unit] == pytest.approx(written, rel=0.1)
    assert len(said) == 1


def test_with_statistics_nothing_is_said_of_the_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tensorprobe")
    session = make_session(tmp_path)
    record_steps(session, 2)
    session.close()
    assert not [text for text in caplog.messages if " wrote " in text]


def test_with_min_free_0_the_disk_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 10**12, 0))
    session = make_session(tmp_path, task="tensor", min_free=0)
    record_steps(session, 2)
    session.close()
    assert run_of(tmp_path, 1)["complete"] is True
