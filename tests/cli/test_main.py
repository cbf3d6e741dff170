"""What all commands share: help, version, errors, interruption, closed pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tensorprobe._version import __version__
from tests.cli.command import COMMAND, run_command, run_here
from tests.length import PATIENCE_SECONDS
from tests.report.dump_files import forward, tensor, write_killed_rank, write_rank

TENSOR_FILES = Path(__file__).parents[1] / "store" / "tensor_file"


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=PATIENCE_SECONDS)


def test_the_version() -> None:
    assert run_command("--version").stdout == f"tensorprobe {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["show", "--help"], ["recover", "--help"]])
def test_help_teaches_with_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, *arguments)
    assert done.returncode == 0
    assert f"tensorprobe {arguments[0] if len(arguments) > 1 else 'show'} dump_path" in done.stdout


def test_help_says_where_runs_differ_in_the_words_of_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert "where two runs first differ" in " ".join(run_here(capsys, "--help").stdout.split())
    told = " ".join(run_here(capsys, "compare", "--help").stdout.split())
    assert "where two runs first differ" in told
    assert "runs part" not in told


def test_a_wrong_option_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "show", "--wrong")
    assert done.returncode == 2
    assert "--wrong" in done.stderr


def test_an_expected_error_is_one_line(tmp_path: Path) -> None:
    done = run_command("show", tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path}/nothing does not exist. Give the dump_path of a run, or a folder in it.\n"


def test_an_error_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump.json").write_text('{"data": {"\\u001b[31m": 3}}')
    error = run_here(capsys, "show", tmp_path).stderr
    assert error and "\x1b" not in error


@pytest.mark.parametrize(
    "command",
    [
        ("show", "dump"),
        ("show", "dump", "--filter", "sin"),
        ("show", "nothing"),
        ("show", "broken"),
        ("compare", "dump", "dump"),
        ("compare", "dump", "broken"),
        ("compare", "dump", "dump", "-o", "result"),
        ("compare-dirs", "arrays", "arrays"),
        ("compare-dirs", "arrays", "others"),
        ("compare-dirs", "arrays", "others", "--by", "number"),
        ("recover", "dump"),
        ("recover", "killed"),
        ("convert", "tensors", "npy"),
        ("convert", "tensors/good\x1b[2J.pt", "npy"),
        ("convert", "killed", "npy"),
    ],
)
def test_no_command_lets_the_name_of_a_file_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    place = tmp_path / "\x1b[31m"
    hostile = {"Torch.sin\x1b[2J.0.forward": forward(output=tensor(data_name="\x1b[2J.npy"))}
    write_rank(place / "dump\x1b[2J", hostile)
    write_killed_rank(place / "killed\x1b[2J", hostile)
    (place / "broken\x1b[2J").mkdir()
    (place / "broken\x1b[2J" / "dump.json").write_text('{"data": {"\\u001b[2J": 3}}')
    for name in ("arrays", "others"):
        (place / f"{name}\x1b[2J").mkdir()
        for file in ("cut\x1b[2J.npy", f"{name}\x1b[2J.npy"):
            (place / f"{name}\x1b[2J" / file).write_bytes(b"\x93NUMPY")
    (place / "tensors\x1b[2J").mkdir()
    (place / "tensors\x1b[2J" / "bad\x1b[2J.pt").write_bytes(b"")
    shutil.copy(TENSOR_FILES / "float32.pt", place / "tensors\x1b[2J" / "good\x1b[2J.pt")
    words = [
        word if word in ("--filter", "sin", "-o", "--by", "number") else spell(place, word) for word in command[1:]
    ]
    done = run_here(capsys, command[0], *words)
    assert done.stdout or done.stderr
    assert "Traceback" not in done.stderr
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x9b", "\x07"}


def spell(place: Path, name: str) -> Path:
    """Where a thing of the test above lies."""
    folder, _, file = name.partition("/")
    return place / f"{folder}\x1b[2J" / file


def test_an_unexpected_exception_keeps_its_traceback(tmp_path: Path) -> None:
    done = run_python(
        """
        import sys
        import tensorprobe.store.reader as reader
        reader.open_dump = lambda path: 1 / 0
        sys.argv = ["tensorprobe", "show", "x"]
        from tensorprobe.__main__ import main
        main()
        """
    )
    assert done.returncode == 2  # 1 would say that two runs differ
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_packages_of_the_command_line_it_says_what_to_install(package: str) -> None:
    done = run_python(
        f"""
        import sys
        sys.modules["{package}"] = None
        sys.argv = ["tensorprobe", "--version"]
        from tensorprobe.__main__ import main
        main()
        """
    )
    assert done.returncode == 2
    assert done.stderr == f'error: the command line needs {package}: pip install "tensorprobe[cli]"\n'


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path, how: list[str]) -> None:
    write_rank(tmp_path, {f"Torch.add.{index}.forward": forward() for index in range(3_000)})
    with subprocess.Popen(
        [*COMMAND, "show", *how, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=PATIENCE_SECONDS) == 0


@pytest.mark.skipif(os.name == "nt", reason="pipes that end")
def test_an_error_that_nobody_reads_is_an_error_all_the_same(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([*COMMAND, "show", tmp_path / "nothing"], stderr=writing) as process:
        os.close(writing)
        assert process.wait(timeout=PATIENCE_SECONDS) == 2


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_ends_it_quietly() -> None:
    done = run_python(
        f"""
        import os, sys
        import tensorprobe.store.reader as reader
        reader.open_dump = lambda path: os.kill(os.getpid(), {signal.SIGINT.value})
        sys.argv = ["tensorprobe", "show", "x"]
        from tensorprobe.__main__ import main
        main()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_terminal_that_knows_only_ascii_is_no_reason_to_fail(tmp_path: Path) -> None:
    write_rank(tmp_path, {"Torch.é.0.forward": forward()})
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [*COMMAND, "show", tmp_path], capture_output=True, env=environment, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0
    assert b"Torch.\\xe9.0" in done.stdout


def test_the_command_line_imports_no_framework() -> None:
    done = run_python(
        """
        import sys
        import tensorprobe.cli.main
        print([name for name in ("torch", "mindspore") if name in sys.modules])
        """
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["show", "compare", "truth", "compare-dirs"])
def test_every_command_that_prints_json_spells_it_alike(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_here(capsys, command, "--help").stdout
    assert "--json" in shown
    assert "--format" not in shown


@pytest.mark.parametrize("spelling", [["--json"], ["--format", "json"]])
def test_the_old_spelling_of_json_still_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spelling: list[str]
) -> None:
    write_rank(tmp_path, {"Torch.add.0.forward": forward()})
    assert json.loads(run_here(capsys, "show", tmp_path, *spelling).stdout)["ranks"]
    assert json.loads(run_here(capsys, "compare", tmp_path, tmp_path, *spelling).stdout)["verdict"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize("arguments", [["--help"], ["show"]])
def test_no_color_means_no_escape_sequence_on_a_terminal(tmp_path: Path, arguments: list[str]) -> None:
    write_rank(tmp_path, {"Torch.add.0.forward": forward()})
    words = [*arguments, str(tmp_path)] if arguments == ["show"] else arguments
    is_escaped = {}
    for value in ("", "1"):
        environment = {**os.environ, "NO_COLOR": value, "TERM": "xterm-256color"}
        is_escaped[value] = b"\x1b" in run_on_terminal([*COMMAND, *words], environment)
    assert is_escaped == {"": True, "1": False}


def run_on_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    """What a command writes where somebody is watching."""
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux: nobody writes there any more
                break
            if not piece:
                break
            written += piece
        process.wait(timeout=PATIENCE_SECONDS)
    os.close(ours)
    return written


@pytest.mark.parametrize("spelling", ["--version", "-V"])
def test_the_help_names_the_version_option(capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    assert spelling in run_here(capsys, "--help").stdout
    assert run_here(capsys, spelling).stdout == f"tensorprobe {__version__}\n"


def test_the_shell_completes_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--install-completion" in run_here(capsys, "--help").stdout
    asked = {"_TENSORPROBE_COMPLETE": "complete_bash", "COMP_WORDS": "tensorprobe comp", "COMP_CWORD": "1"}
    done = subprocess.run(
        COMMAND, env={**os.environ, **asked}, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
    )
    assert done.stdout.split() == ["compare", "compare-dirs"]
