"""Programs that record into a real S3 store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tensorprobe
from tensorprobe.errors import ConfigError
from tests.cli.command import run_here
from tests.length import PATIENCE_SECONDS
from tests.remote.conftest import open_s3
from tests.remote.program import record_step
from tests.remote.server import start_server


def test_a_run_is_in_the_store_and_its_losses_are_those_without_it(bucket: str, cache: Path, tmp_path: Path) -> None:
    url = f"s3://{bucket}/run"
    assert record_step(url, steps=3) == record_step(tmp_path / "run", steps=3)
    result = tensorprobe.compare(tmp_path / "run", url)
    assert result
    assert [rank.bases for rank in result.ranks] == [{"tensor": 28}] * 3
    left = {path.name for path in (cache / "upload").rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith(".")} == {"run.json"}  # what was sent is removed here


def test_the_next_run_takes_the_place_of_the_one_before(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/run"
    record_step(url)
    record_step(url, task="statistics")
    assert not open_s3().find(f"{bucket}/run/step0/rank/dump_tensor_data")
    assert tensorprobe.compare(url, url)


def test_a_store_that_is_lost_loses_nothing(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_server()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    open_s3().mkdir("lost")
    url = "s3://lost/run"
    caplog.set_level("WARNING", "tensorprobe")
    expected = record_step(tmp_path / "run", steps=4)
    found = record_step(url, steps=4, after_step=lambda step: server.kill() if step == 1 else None)
    assert found == expected
    spool = cache / "upload" / "s3" / "lost" / "run"
    assert f"Nothing is lost: it is in {spool}. Send it with: tensorprobe upload {spool} {url}" in caplog.text
    assert sorted(path.parts[-3] for path in spool.rglob("dump.json"))[-2:] == ["step2", "step3"]
    again = start_server(server.port)  # it remembers nothing
    try:
        open_s3().mkdir("lost")
        done = run_here(capsys, "upload", spool, url)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"next: tensorprobe show {url}" in done.stdout
        for step in (2, 3):
            assert tensorprobe.compare(tmp_path / "run", url, step=step)
    finally:
        again.kill()


def test_a_wrong_store_is_refused_before_anything_is_recorded(bucket: str) -> None:
    with pytest.raises(ConfigError, match="dump_path: s3://no-such-bucket/run: there is no s3://no-such-bucket"):
        record_step("s3://no-such-bucket/run")
    with pytest.raises(ConfigError, match="az://bucket/run needs adlfs: pip install adlfs"):
        record_step("az://bucket/run")


def test_a_killed_program_leaves_its_finished_steps_in_the_store(bucket: str, tmp_path: Path) -> None:
    code = f"""
import sys, time
from tests.remote.program import record_step
def wait(step):
    if step == 1:
        print(*[name for name in ("fsspec", "s3fs", "aiohttp") if name in sys.modules], "recorded", flush=True)
        time.sleep(1000)
record_step("s3://{bucket}/run", steps=3, after_step=wait)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "recorded\n"  # and nothing of the store is in the program
        os.kill(program.pid, signal.SIGKILL)
    until = time.monotonic() + PATIENCE_SECONDS
    while len(open_s3().glob(f"{bucket}/run/*/rank/run.json")) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    record_step(tmp_path / "run", steps=2)
    assert tensorprobe.compare(tmp_path / "run", f"s3://{bucket}/run")


def test_a_part_in_a_store_is_recovered_there(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_step(tmp_path / "run")
    folder = tmp_path / "run" / "step0" / "rank"
    whole = (folder / "dump.json").read_bytes()
    (folder / "dump.json.part").write_bytes(whole[: whole.rindex(b"}}") - 5])  # killed in the middle of a line
    (folder / "dump.json").unlink()
    s3 = open_s3()
    s3.put(str(tmp_path / "run"), f"{bucket}/run", recursive=True)
    done = run_here(capsys, "recover", "--force", f"s3://{bucket}/run")  # this process is its writer, and lives
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"s3://{bucket}/run/step0/rank\n")
    names = {path.rpartition("/")[2] for path in s3.ls(f"{bucket}/run/step0/rank", detail=False)}
    assert "dump.json" in names
    assert "dump.json.part" not in names
    again = run_here(capsys, "recover", f"s3://{bucket}/run")
    assert again.stdout == f"nothing to do: every file of s3://{bucket}/run is complete\n"


def test_what_the_flight_recorder_keeps_is_sent_at_the_end(bucket: str) -> None:
    record_step(f"s3://{bucket}/run", steps=5, flight_recorder={"steps": 2})
    steps = {path.split("/")[2] for path in open_s3().glob(f"{bucket}/run/*/rank/dump.json")}
    assert steps == {"step3", "step4"}


def test_a_run_in_memory(cache: Path, tmp_path: Path) -> None:
    assert record_step("memory://written/run") == record_step(tmp_path / "run")
    assert tensorprobe.compare("memory://written/run", tmp_path / "run")


def test_a_file_address_is_written_where_it_says(tmp_path: Path, cache: Path) -> None:
    record_step(f"file://{tmp_path}/run")
    assert (tmp_path / "run" / "step0" / "rank" / "dump.json").is_file()
    assert not cache.exists()
