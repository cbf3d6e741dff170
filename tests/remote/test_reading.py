"""Dumps in a real S3 store, read by the commands as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tensorprobe
from tensorprobe.errors import DumpError
from tests.cli.command import run_command, run_here
from tests.cli.test_serve import ask, ask_for, serving
from tests.remote.conftest import open_s3
from tests.remote.dump import write_run
from tests.replay.test_repro import run_script


@pytest.fixture
def runs(bucket: str, tmp_path: Path) -> str:
    """The address of two runs, `good` and `bad`."""
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", scale=1.5)
    s3 = open_s3()
    for name in ("good", "bad"):
        s3.put(str(tmp_path / name), f"{bucket}/{name}", recursive=True)
    return f"s3://{bucket}"


def test_two_runs_are_compared_where_they_are(runs: str, tmp_path: Path) -> None:
    done = run_command("compare", f"{runs}/good", f"{runs}/bad", "-o", tmp_path / "result", "--files", "json,csv")
    assert (done.returncode, done.stderr) == (1, "")
    assert "The runs first differ at Tensor.mul.0.forward" in done.stdout
    saved = json.loads((tmp_path / "result" / "compare.json").read_text())
    assert saved["reference"] == f"{runs}/good"


def test_one_side_may_be_on_this_machine(runs: str, tmp_path: Path) -> None:
    result = tensorprobe.compare(tmp_path / "good", f"{runs}/good")
    assert result
    assert result.ranks[0].bases["tensor"] > 0


def test_a_run_is_shown_and_named_by_its_address(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "show", f"{runs}/good", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (rank,) = json.loads(done.stdout)["ranks"]
    assert rank["folder"] == f"{runs}/good/step0/rank"


def test_a_part_of_a_run_is_read_without_the_rest(
    runs: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3 = open_s3()
    for step in range(1, 3):
        s3.put(str(tmp_path / "good" / "step0"), f"{runs.removeprefix('s3://')}/good/step{step}", recursive=True)
    done = run_here(capsys, "show", f"{runs}/good", "--step", 1)
    assert done.returncode == 0
    copied = {path.parent.parent.name for path in cache.rglob("dump.json")}
    assert copied == {"step1"}
    assert not list(cache.rglob("*.npy"))  # show needs no tensors


def test_what_was_written_anew_is_read_anew(runs: str, tmp_path: Path) -> None:
    assert not tensorprobe.compare(f"{runs}/good", f"{runs}/bad")
    open_s3().put(f"{tmp_path}/good/", f"{runs}/bad", recursive=True)
    assert tensorprobe.compare(f"{runs}/good", f"{runs}/bad")


def test_a_tensor_that_is_gone_from_the_store_is_not_read_from_an_old_copy(runs: str) -> None:
    assert tensorprobe.compare(f"{runs}/good", f"{runs}/good")
    place = f"{runs}/good/step0/rank/dump_tensor_data/Tensor.mul.0.forward.output.0.npy"
    open_s3().rm_file(place)
    result = tensorprobe.compare(f"{runs}/good", f"{runs}/bad")
    (call,) = result.ranks[0].calls
    (value,) = [value for value in call.values if value.slot == "output.0"]
    assert value.measurement is not None
    assert value.measurement.fallback == "Tensor.mul.0.forward.output.0.npy is missing"


def test_copies_stay_within_their_bound(
    runs: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    write_run(large, size=100_000, count=20)
    open_s3().put(str(large), f"{runs}/large", recursive=True)
    monkeypatch.setenv("TENSORPROBE_CACHE_GB", "0.004")  # ten of its forty tensors
    result = tensorprobe.compare(f"{runs}/large", f"{runs}/large")
    assert result
    assert result.ranks[0].bases == {"tensor": 40}
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) < 20e6
    assert sum(path.stat().st_size for path in large.rglob("*") if path.is_file()) > 16e6


def test_every_command_that_reads_a_dump_reads_it_from_a_store(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.remote.program import record_step

    record_step(tmp_path / "run")
    open_s3().put(str(tmp_path / "run"), f"{bucket}/run", recursive=True)
    rest: dict[str, list[object]] = {
        "truth": [],
        "report": ["-o", tmp_path / "run.html"],
        "export": ["--to", "model-explorer", "-o", tmp_path / "graphs"],
        "tensor": ["Functional.linear.0.forward.output.0", "-o", tmp_path / "tensors"],
        "replay": ["--dtype", "recorded"],
        "repro": ["Functional.linear.0.forward", "-o", tmp_path / "bug"],
    }
    for command, options in rest.items():
        done = run_here(capsys, command, f"s3://{bucket}/run", *options)
        assert (done.returncode, done.stderr) == (0, ""), command
    (written,) = (tmp_path / "tensors").iterdir()
    assert written.stat().st_size > 0
    assert f"s3://{bucket}/run" in (tmp_path / "run.html").read_text()
    assert "largest difference" in run_script(tmp_path / "bug" / "repro.py")


def test_two_runs_are_served_with_the_tensors_of_the_store(runs: str) -> None:
    with serving(f"{runs}/good", f"{runs}/bad") as (_, address):
        status, page = ask_for(address)
        drawn = [ask(address, f"api/pair?row={row}") for row in range(2)]
    assert (status, f"{runs}/good".encode() in page) == (200, True)
    assert [one["metrics"]["max_abs_error"] > 0 for one in drawn if one["metrics"]] == [False, True]


def test_a_wrong_address_says_what_is_wrong(bucket: str) -> None:
    with pytest.raises(DumpError, match="s3://no-such-bucket-here/run does not exist"):
        tensorprobe.compare("s3://no-such-bucket-here/run", "s3://no-such-bucket-here/run")
    with pytest.raises(DumpError, match=f"s3://{bucket}/none does not exist. Give the dump_path of a run"):
        tensorprobe.compare(f"s3://{bucket}/none", f"s3://{bucket}/none")
    with pytest.raises(DumpError, match="az://bucket/run needs adlfs: pip install adlfs"):
        tensorprobe.compare("az://bucket/run", "az://bucket/run")


def test_a_server_that_is_gone_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.remote.server import make_environment

    for name, value in make_environment(1).items():  # nobody listens there
        monkeypatch.setenv(name, value)
    done = run_command("show", "s3://bucket/run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: s3://bucket/run")


def test_a_store_in_memory(cache: Path, tmp_path: Path) -> None:
    import fsspec

    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", scale=1.5)
    for name in ("good", "bad"):
        fsspec.filesystem("memory").put(str(tmp_path / name), f"/runs/{name}", recursive=True)
    result = tensorprobe.compare("memory://runs/good", "memory://runs/bad", processes=2)
    assert result.verdict.call is not None
    assert result.verdict.call.name == "Tensor.mul.0.forward"
    assert tensorprobe.compare("memory://runs/good", "memory://runs/good")


def test_a_file_address_is_a_path_of_this_machine(cache: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    assert tensorprobe.compare(f"file://{tmp_path}/good", tmp_path / "good")
    assert not cache.exists()  # nothing is copied
    assert np.load(next((tmp_path / "good").rglob("*.npy"))).size
