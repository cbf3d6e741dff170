"""`tensorprobe serve`, as a user starts it: a real process that is asked over HTTP."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.cli.command import COMMAND, run_here
from tests.length import PATIENCE_SECONDS
from tests.serve.recorded import NAME, VALUES, write_run


@contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it printed."""
    command = [*COMMAND, "serve", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert process.stdout.readline() == "Ctrl-C ends it.\n"
            yield process, address
        finally:
            process.kill()


def ask_for(address: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def ask(address: str, path: str) -> Any:
    start, _, token = address.partition("?token=")
    return json.loads(ask_for(f"{start}{path}&token={token}")[1])


def test_a_run_is_served_with_its_tensors_and_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    with serving(write_run(tmp_path)) as (process, address):
        status, page = ask_for(address)
        assert status == 200
        assert page.lower().startswith(b"<!doctype html>")
        assert ask_for(address + "x")[0] == ask_for(address.partition("?")[0])[0] == 403
        described = ask(address, "api/pair?row=1")
        assert described["heat"]["reference"] == VALUES.tolist()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output, errors) == (0, "", "")


def test_the_address_is_on_loopback_and_has_a_token_of_its_own_each_time(tmp_path: Path) -> None:
    addresses = []
    for _ in range(2):
        with serving(write_run(tmp_path / str(len(addresses)))) as (_, address):
            addresses.append(address)
    tokens = [address.partition("/?token=") for address in addresses]
    assert all(start.startswith("http://127.0.0.1:") for start, _, _ in tokens)
    assert tokens[0][2] != tokens[1][2]
    assert min(len(token) for _, _, token in tokens) >= 20


def test_two_dumps_are_compared_and_any_pair_is_drawn(tmp_path: Path) -> None:
    reference, candidate = write_run(tmp_path / "good"), write_run(tmp_path / "bad", VALUES + 1)
    with serving(reference, candidate) as (_, address):
        assert ask_for(address)[0] == 200
        drawn = [ask(address, f"api/pair?row={row}") for row in range(3)]
    errors = [one["metrics"]["max_abs_error"] for one in drawn if one["metrics"]]
    assert errors == [1.0]
    assert any("there is no file of" in one.get("reason", "") for one in drawn)


def test_a_run_is_served_by_its_address(tmp_path: Path) -> None:
    with serving(f"file://{write_run(tmp_path)}") as (_, address):
        assert ask_for(address)[0] == 200
        assert ask(address, "api/pair?row=1")["heat"]["reference"] == VALUES.tolist()


def test_a_saved_comparison_is_served_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference, candidate = write_run(tmp_path / "good"), write_run(tmp_path / "bad", VALUES + 1)
    run_here(capsys, "compare", reference, candidate, "-o", tmp_path / "result", "--files", "json")
    for path in (tmp_path / "result", tmp_path / "result" / "compare.json"):
        with serving(path) as (_, address):
            assert ask_for(address)[0] == 200
            drawn = [ask(address, f"api/pair?row={row}") for row in range(3)]
            side = ask(address, "api/source?call=0")["candidate"]
        assert [one["metrics"]["max_abs_error"] for one in drawn if one["metrics"]] == [1.0]
        assert side["calls"] == [NAME]
        assert side["location"] == "model.py:18 in forward: x = self.fc(x)"


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_here(capsys, "serve", write_run(tmp_path), "--port", port)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: --port {port} cannot be listened on (Address already in use). Give another one; 0 takes a free one.\n"
    )


def test_without_its_packages_it_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    find = importlib.util.find_spec

    def find_none(name: str, package: str | None = None) -> Any:
        return None if name in ("starlette", "uvicorn") else find(name, package)

    with mock.patch("importlib.util.find_spec", find_none):
        done = run_here(capsys, "serve", tmp_path)
    assert done.returncode == 2
    assert done.stderr == 'error: tensorprobe serve needs starlette, uvicorn: pip install "tensorprobe[serve]"\n'


def test_a_comparison_without_its_data_says_how_to_write_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compare.csv").touch()
    done = run_here(capsys, "serve", tmp_path)
    assert done.returncode == 2
    assert "tensorprobe compare REFERENCE CANDIDATE -o DIR --files csv,html,json" in done.stderr


def test_a_saved_comparison_has_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "compare.json").write_text("{}")
    done = run_here(capsys, "serve", tmp_path, "--step", 1)
    assert done.returncode == 2
    assert "--step and --rank are for runs. Leave them out." in done.stderr


def test_what_is_no_dump_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "serve", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_open_opens_the_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorprobe.cli import serve

    with mock.patch("webbrowser.open", return_value=False) as opened:
        serve._tell("http://127.0.0.1:1/?token=x", opens=True)
        serve._tell("http://127.0.0.1:1/?token=x", opens=False)
    opened.assert_called_once_with("http://127.0.0.1:1/?token=x")
    assert capsys.readouterr().err == "note: no browser could be opened; open the address yourself.\n"
