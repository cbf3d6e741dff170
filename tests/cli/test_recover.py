"""`tensorprobe recover`, as a user types it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tests.cli.command import run_command, run_here
from tests.report.dump_files import forward, model_records, tensor, write_killed_rank


def test_a_killed_run_is_closed_and_the_next_command_named(tmp_path: Path) -> None:
    folder = write_killed_rank(tmp_path / "step0" / "rank0", model_records())
    done = run_command("recover", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        str(folder),
        "  run.json: marked as recovered",
        "  construct.json: 10 entries, 1 cut line left out",
        "  stack.json: written from its journal",
        "  dump.json: 10 entries, 1 cut line left out",
        f"next: tensorprobe show {tmp_path}",
    ]
    again = run_command("recover", tmp_path)
    assert (again.returncode, again.stdout) == (0, f"nothing to do: every file of {tmp_path} is complete\n")


def test_a_live_run_is_refused_without_force(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "run.json").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    refused = run_command("recover", tmp_path)
    assert refused.returncode == 2
    assert "is being written by process" in refused.stderr
    assert run_command("recover", tmp_path, "--force").returncode == 0


def test_a_name_in_the_dump_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "\x1b[2Jdump"
    write_killed_rank(folder, {"Torch.sin.0.forward": forward(output=tensor(data_name="\x1b]0;title\x07\x9b2J.pt"))})
    done = run_here(capsys, "recover", folder)
    assert done.returncode == 0
    assert r"1 file that a record names is missing, the first is \x1b]0;title\x07\x9b2J.pt" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    again = run_here(capsys, "recover", folder)
    assert again.stdout.startswith("nothing to do") and again.stdout.rstrip("\n").isprintable()


def test_a_spoilt_line_of_the_stacks_ends_neither_show_nor_recover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_killed_rank(tmp_path, model_records())
    with (tmp_path / "stack.json.part").open("a") as file:
        file.write('\n["call", [1], "x"]\n')
    for command in ("show", "recover", "show"):
        done = run_here(capsys, command, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
