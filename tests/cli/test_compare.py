"""`tensorprobe compare`, as a user types it."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import COMMAND, run_command, run_here
from tests.length import PATIENCE_SECONDS, wait_until
from tests.report.dump_files import forward, tensor, write_rank

pytest.importorskip("xlsxwriter")

FILES = ["compare.csv", "report.html"]
STACKS = {"0": [["Functional.gelu.0.forward"], ["File /x/model.py, line 18, in forward, \n y = F.gelu(x)"]]}


def records(gelu: float = 2.0, **more: Any) -> dict[str, Any]:
    """A model of three calls; `gelu` is what the second one computes."""
    after = gelu * 2
    return {
        "Functional.linear.0.forward": forward(tensor(1.0), output=tensor(1.5), module_path="fc"),
        "Functional.gelu.0.forward": forward(
            tensor(1.5, source="Functional.linear.0.forward"), output=tensor(gelu), module_path="act"
        ),
        "Torch.mul.0.forward": forward(
            tensor(gelu, source="Functional.gelu.0.forward"), output=tensor(after), module_path=""
        ),
        **more,
    }


def write_runs(folder: Path, *ranks: str, candidate: dict[str, Any] | None = None) -> tuple[Path, Path]:
    for rank in ranks or ("step0/rank",):
        write_rank(folder / "good" / rank, records(), stacks=STACKS)
        write_rank(folder / "bad" / rank, records(2.5) if candidate is None else candidate, stacks=STACKS)
    return folder / "good", folder / "bad"


def test_the_first_call_that_went_wrong_is_named_and_the_next_command_works(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capfd, "compare", *write_runs(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "Functional.gelu.0.forward" in done.stdout.splitlines()[0]
    assert "  calls         1 source · 1 propagated · 1 clean\n" in done.stdout
    commands = [line.split("next")[-1] for line in done.stdout.splitlines() if "tensorprobe show" in line]
    shown = [run_here(capfd, *shlex.split(command)[1:]) for command in commands]
    assert [one.returncode for one in shown] == [0, 0]
    assert all("/x/model.py:18 in forward" in one.stdout for one in shown)


def test_help_teaches_with_examples(capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "compare", "--help")
    assert done.returncode == 0
    assert "tensorprobe compare good bad -o result" in done.stdout
    assert "Exit codes: 0 the runs agree, 1 they differ, 2 they could not be compared." in done.stdout


def test_runs_that_agree_are_exit_code_0(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "compare", *write_runs(tmp_path, candidate=records()))
    assert (done.returncode, done.stderr) == (0, "")
    assert "this covers   all 3 calls of the reference and all 3 of the candidate have a partner (100 %)" in done.stdout


def test_runs_with_nothing_in_common_are_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = write_runs(tmp_path, candidate={"Torch.fft_fft.0.forward": forward(shape=(7,))})
    done = run_here(capfd, "compare", good, bad)
    assert done.returncode == 2
    assert done.stdout.startswith("Nothing could be compared")


def test_files_are_written_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "the result"
    done = run_command("compare", *write_runs(tmp_path), "-o", folder)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [f"written: {folder / name}" for name in FILES]
    assert sorted(path.name for path in folder.iterdir()) == FILES
    with (folder / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["role"] for row in rows if row["reference_name"] == "Functional.gelu.0.forward.output.0"] == ["source"]


def test_the_files_that_are_asked_for_are_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "result"
    done = run_here(capfd, "compare", *write_runs(tmp_path), "-o", folder, "--files", "json,xlsx")
    assert done.returncode == 1
    assert sorted(path.name for path in folder.iterdir()) == ["compare.json", "compare.xlsx"]
    assert json.loads((folder / "compare.json").read_text())["verdict"]["kind"] == "source"


def test_files_that_there_are_not_and_files_without_a_folder_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = write_runs(tmp_path)
    done = run_here(capfd, "compare", *paths, "-o", tmp_path / "result", "--files", "csv,pdf")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'pdf' is not one of csv, html, xlsx, json" in done.stderr
    assert not (tmp_path / "result").exists()
    done = run_here(capfd, "compare", *paths, "--files", "csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --files 'csv' says what -o writes. Give a folder, too: -o result\n"


def test_with_format_json_the_document_is_all_that_goes_to_stdout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = ("-o", tmp_path / "result", "--files", "json")
    done = run_here(capfd, "compare", *write_runs(tmp_path), "--format", "json", *files)
    assert done.returncode == 1
    content = json.loads(done.stdout)
    assert content["verdict"]["call"]["reference"] == ["Functional.gelu.0.forward"]
    assert done.stderr.count("written: ") == 1
    written = json.loads((tmp_path / "result" / "compare.json").read_text())
    assert {key: value for key, value in written.items() if key != "page"} == content


@pytest.mark.parametrize("is_different", [False, True])
def test_too_little_coverage_is_exit_code_2_and_said(
    tmp_path: Path, is_different: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    more = {f"Torch.fft_fft.{n}.forward": forward(tensor(), output=tensor(shape=(7,))) for n in range(9)}
    paths = write_runs(tmp_path, candidate=records(2.5 if is_different else 2.0, **more))
    required = run_here(capfd, "compare", *paths, "--require-coverage", "0.95")
    assert required.returncode == 2
    assert required.stderr == (
        "error: only 40 % of the calls of step0/rank have a partner, and 95 % is required. The list of calls without a "
        "partner says which do not; a mapping file can pair them.\n"
    )
    assert "no partner" in required.stdout
    assert run_here(capfd, "compare", *paths, "--require-coverage", "0.4").returncode == is_different


def edit_first_leaf(run: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change what dump.json says of the result of the first call."""
    path = run / "step0" / "rank" / "dump.json"
    content = json.loads(path.read_text())
    edit(content["data"]["Torch.add.0.forward"]["output"][0])
    path.write_text(json.dumps(content))


def lose_first_file(tmp_path: Path, edit: Callable[[dict[str, Any]], Any]) -> list[Path]:
    """The same run twice, four values each; one tensor file of the second is lost, and its record is edited."""
    paths = [write_tensor_run(tmp_path / name, 2.0, 8, 4) for name in ("good", "bad")]
    (paths[1] / "step0/rank/dump_tensor_data/Torch.add.0.forward.output.0.npy").unlink()
    edit_first_leaf(paths[1], edit)
    return paths


def forget_numbers(leaf: dict[str, Any]) -> None:
    for key in ("Max", "Min", "Mean", "Norm"):
        leaf.pop(key)


def test_a_lost_tensor_whose_record_contradicts_is_exit_code_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = lose_first_file(tmp_path, lambda leaf: leaf.update(Max=99999))
    done = run_here(capfd, "compare", *paths, "--require-coverage", 1)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("The runs first differ at Torch.add.0.forward")
    assert "compared only by their records: Torch.add.0.forward.output.0.npy is missing (1)" in done.stdout


def test_a_lost_tensor_whose_record_agrees_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "compare", *lose_first_file(tmp_path, lambda leaf: None), "--require-coverage", 1)
    assert done.returncode == 0
    assert "1 only by their records: Torch.add.0.forward.output.0.npy is missing" in done.stdout


def test_what_could_not_be_compared_is_exit_code_2_unless_it_is_allowed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = lose_first_file(tmp_path, forget_numbers)
    done = run_here(capfd, "compare", *paths)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("1 value could not be compared, and the results depend on it: Torch.add.0.forward.")
    assert run_here(capfd, "compare", *paths, "--allow-uncompared").returncode == 0


def test_the_required_coverage_counts_values_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = lose_first_file(tmp_path, forget_numbers)
    done = run_here(capfd, "compare", *paths, "--allow-uncompared", "--require-coverage", 0.8)
    assert done.returncode == 2
    assert done.stderr == (
        "error: only 75 % of the values of step0/rank were compared, and 80 % is required. "
        '"not compared" says why the others were not.\n'
    )
    assert run_here(capfd, "compare", *paths, "--allow-uncompared", "--require-coverage", 0.75).returncode == 0


def test_two_programs_are_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = {f"Torch.fft_fft.{n}.forward": forward(tensor(shape=(9,)), output=tensor(shape=(7,))) for n in range(9)}
    other["Functional.linear.0.forward"] = forward(tensor(shape=(9, 9)), output=tensor(3.0, shape=(9, 9)))
    done = run_here(capfd, "compare", *write_runs(tmp_path, candidate=other))
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("These do not look like the same program: 1 of 3 calls of the reference and 1 of 10")


def test_a_step_that_only_one_run_has_is_not_covered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = write_runs(tmp_path, "step0/rank", "step1/rank", candidate=records(2.0))
    shutil.rmtree(Path(paths[1]) / "step1")
    done = run_here(capfd, "compare", *paths, "--require-coverage", "0.95")
    assert done.returncode == 2
    assert "step 1: only in the reference, not compared, and 95 % of all calls is required" in done.stderr
    assert run_here(capfd, "compare", *paths).returncode == 0


def test_a_required_coverage_above_all_of_it_is_a_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "compare", "a", "b", "--require-coverage", "95")
    assert done.returncode == 2
    assert "--require-coverage" in done.stderr


def test_one_step_and_one_rank(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = write_runs(tmp_path, "step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1")
    every = run_here(capfd, "compare", *paths)
    assert "         rank0   rank1\n  step0  source  source\n  step1  source  source\n" in every.stdout
    assert "--step 0 --rank 0 --filter" in every.stdout
    one = run_here(capfd, "compare", *paths, "--step", 1, "--rank", 1)
    assert "--step 1 --rank 1 --filter" in one.stdout
    assert "step0" not in one.stdout
    missing = run_here(capfd, "compare", *paths, "--step", 7)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "has no step 7" in missing.stderr


def write_tensor_run(folder: Path, first: float, element_count: int, count: int = 1) -> Path:
    """Calls whose results are files: zeros, but for the first element. Zeros take no place on the disk."""
    data = folder / "step0" / "rank" / "dump_tensor_data"
    data.mkdir(parents=True)
    entries = {}
    for index in range(count):
        name = f"Torch.add.{index}.forward"
        leaf = tensor(first, (element_count,), data_name=f"{name}.output.0.npy")
        entries[name] = forward(output=leaf)
        with (data / leaf["data_name"]).open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (element_count,)}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(np.float32(first).tobytes())
            file.truncate(file.tell() + 4 * (element_count - 1))
    write_rank(folder / "step0" / "rank", entries)
    return folder


def test_a_fixed_tolerance(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [write_tensor_run(tmp_path / name, first, 8) for name, first in (("good", 2.0), ("bad", 2.5))]
    assert run_here(capfd, "compare", *paths).returncode == 1
    assert run_here(capfd, "compare", *paths, "--rtol", "0.5").returncode == 0
    negative = run_here(capfd, "compare", *paths, "--atol", "-1")
    assert negative.returncode == 2
    assert "atol is -1.0" in negative.stderr


@pytest.mark.parametrize("arguments", [["nothing", "."], [".", "nothing"]])
def test_a_run_that_is_not_there(tmp_path: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    good, _ = write_runs(tmp_path)
    paths = [good if word == "." else tmp_path / word for word in arguments]
    done = run_here(capfd, "compare", *paths, "-o", tmp_path / "result")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path}/nothing does not exist. Give the dump_path of a run, or a folder in it.\n"
    assert not (tmp_path / "result").exists()


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = write_runs(tmp_path)
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "in it", tmp_path / "good", tmp_path / "bad" / "step0"):
        done = run_here(capfd, "compare", *paths, "-o", output)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: -o {output}")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("how", [[], ["--format", "json"]])
def test_a_reader_that_has_seen_enough_gets_the_exit_code_and_the_files(tmp_path: Path, how: list[str]) -> None:
    more = {f"Torch.add.{n}.forward": forward(tensor(n), output=tensor(n)) for n in range(300)}
    good, bad = tmp_path / "good", tmp_path / "bad"
    write_rank(good, records(**more))
    write_rank(bad, records(2.5, **more))
    command = [*COMMAND, "compare", good, bad, "-o", tmp_path / "result", *how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(timeout=PATIENCE_SECONDS) == 1
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == FILES


def test_a_hostile_name_steers_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ["Torch.\x1b[31m.0.forward", "Torch.[bold]x[/bold].0.forward", "../../x", "=1+1", "<b>", "x" * 10_000]
    paths = write_runs(tmp_path, candidate=records(2.5, **{name: forward() for name in names}))
    done = run_here(capfd, "compare", *paths, "-o", tmp_path / "result")
    assert done.returncode == 1
    assert all(char.isprintable() or char == "\n" for char in done.stdout)
    assert "Torch.[bold]x[/bold].0.forward" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "good", "result"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for workers in /proc")
def test_ctrl_c_leaves_neither_workers_nor_files(tmp_path: Path) -> None:
    """With a terminal on stderr, so that there is a bar; the key reaches all processes of the terminal's group."""
    paths = [write_tensor_run(tmp_path / name, first, 2**25, 12) for name, first in (("good", 1.0), ("bad", 2.0))]
    terminal, end = os.openpty()
    command = [*COMMAND, "compare", *paths, "--processes", "2", "-o", tmp_path / "result"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, start_new_session=True)
    os.close(end)
    shown: list[bytes] = []
    reading = threading.Thread(target=read_terminal, args=(terminal, shown))
    reading.start()
    wait_until(lambda: has_workers(process.pid) and b"comparing" in b"".join(shown))
    os.killpg(process.pid, signal.SIGINT)
    stdout, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, stdout) == (130, b"")
    wait_until(lambda: has_ended(process.pid))  # no worker outlives the command
    assert not (tmp_path / "result").exists()
    reading.join()
    os.close(terminal)
    assert b"Traceback" not in b"".join(shown)


def read_terminal(terminal: int, shown: list[bytes]) -> None:
    """A terminal that nobody reads holds up the command that writes to it."""
    try:
        while data := os.read(terminal, 1 << 16):
            shown.append(data)
    except OSError:  # no process has it open any more
        return


def has_workers(pid: int) -> bool:
    found = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return len(found) >= 2


def has_ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
