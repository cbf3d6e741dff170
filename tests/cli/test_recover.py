"""`tensorprobe recover`, as a user types it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from tests.cli.command import run_command
from tests.report.dump_files import model_records, write_killed_rank


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
