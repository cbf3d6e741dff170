"""What stands behind the rows and calls of a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tensorprobe.report.page.run import build_run_page
from tensorprobe.serve.shown import ShownComparison, ShownRun
from tensorprobe.serve.tensor_source import TensorSource
from tensorprobe.store.reader import open_dump
from tests.serve.recorded import NAME, VALUES, make_page, write_run


def _show(tmp_path: Path) -> ShownComparison:
    other = VALUES.copy()
    other[1, 2] = -1.0
    reference, candidate = write_run(tmp_path / "good"), write_run(tmp_path / "bad", other)
    return ShownComparison(make_page(reference, candidate))


def test_a_pair_is_read_from_both_dumps(tmp_path: Path) -> None:
    described = _show(tmp_path).describe_row(0)
    assert described["metrics"]["max_abs_error"] == 6.0
    assert described["metrics"]["worst_index"] == [1, 2]
    assert described["heat"]["difference"] == [[0.0, 0.0, 0.0], [0.0, 0.0, -6.0]]


def test_a_pair_without_saved_tensors_says_why(tmp_path: Path) -> None:
    described = _show(tmp_path).describe_row(1)
    assert (described["histogram"], described["heat"], described["metrics"]) == (None, None, {})
    folder = tmp_path / "good" / "step0" / "rank"
    assert described["reason"] == (
        f'there is no file of {NAME}.input.0 in {folder}, which was recorded with task "statistics": '
        'only what task "replay" left out can be computed. Record with task "replay" or "tensor".'
    )


def test_an_argument_that_is_no_tensor_says_so(tmp_path: Path) -> None:
    reason = _show(tmp_path).describe_row(2)["reason"]
    assert reason == f"{NAME}.input.1 is 1.5, a plain value and not a tensor: there is nothing to draw."


def test_a_call_without_a_partner_says_so(tmp_path: Path) -> None:
    shown = _show(tmp_path)
    assert shown.describe_row(3)["reason"] == "The candidate has nothing that stands against it."
    del shown.page["rows"]["reference_name_s"]
    assert shown.describe_row(3)["reason"] == "The reference has nothing that stands against it."


def test_a_dump_that_is_gone_leaves_the_page_and_a_reason(tmp_path: Path) -> None:
    page = _show(tmp_path).page
    shutil.rmtree(tmp_path / "bad")
    shown = ShownComparison(page)
    gone = tmp_path / "bad"
    assert shown.describe_row(0)["reason"] == (
        f"{gone} does not exist. Give the dump_path of a run, or a folder in it."
    )
    sides = shown.describe_call(0)
    assert sides["candidate"] is None
    assert sides["reference"] is not None


def test_dumps_that_were_named_relative_are_found_beside_the_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad")
    shown = ShownComparison(make_page("good", "bad"), tmp_path)
    assert shown.describe_row(0)["metrics"]["is_equal"] is True


def test_a_tensor_file_that_leads_out_of_the_dump_is_not_read(tmp_path: Path) -> None:
    shown = _show(tmp_path)
    file = tmp_path / "bad" / "step0" / "rank" / "dump_tensor_data" / f"{NAME}.output.0.npy"
    np.save(tmp_path / "secret.npy", np.zeros((2, 3)))
    file.unlink()
    file.symlink_to(tmp_path / "secret.npy")
    assert "leads out of the dump" in shown.describe_row(0)["reason"]


def test_a_corrupt_tensor_file_is_a_reason(tmp_path: Path) -> None:
    shown = _show(tmp_path)
    (tmp_path / "bad" / "step0" / "rank" / "dump_tensor_data" / f"{NAME}.output.0.npy").write_bytes(b"\x93NUMPY")
    assert f"{NAME}.output.0.npy" in shown.describe_row(0)["reason"]


def test_a_call_is_shown_with_its_stack_on_both_sides(tmp_path: Path) -> None:
    sides = _show(tmp_path).describe_call(0)
    assert sides["reference"] == sides["candidate"]
    side = sides["reference"]
    assert side is not None
    assert (side["calls"], side["module"]) == ([NAME], "fc")
    assert side["location"] == "model.py:18 in forward: x = self.fc(x)"
    assert side["stack"] == ["model.py:18 in forward: x = self.fc(x)", "train.py:3 in main: model(x)"]
    assert side["source"] is None  # the file is not there


def test_a_tensor_of_a_single_run_is_drawn_alone(tmp_path: Path) -> None:
    dump = open_dump(write_run(tmp_path))
    shown = ShownRun(build_run_page(dump), TensorSource(dump))
    rows = [shown.page["strings"][number] for number in shown.page["rows"]["slot_s"]]
    described = shown.describe_row(rows.index("output.0"))
    assert described["heat"]["reference"] == VALUES.tolist()
    assert described["histogram"]["difference"] == []
    assert "there is no file of" in shown.describe_row(rows.index("input.0"))["reason"]
    sides = shown.describe_call(0)
    assert sides["candidate"] is None
    assert sides["reference"] is not None
    assert sides["reference"]["location"] == "model.py:18 in forward: x = self.fc(x)"
