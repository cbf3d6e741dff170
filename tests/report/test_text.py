"""What `show` prints: the same into every pipe, the window's width on a terminal, nothing that steers the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tensorprobe.report.rank import ShowOptions, build_rank_report, read_rank_report
from tensorprobe.report.text import print_reports
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import (
    HEADER,
    MODEL_STACKS,
    RUN,
    forward,
    model_parents,
    model_records,
    tensor,
    write_killed_rank,
    write_lines,
    write_rank,
)


def render(path: Path, options: ShowOptions | None = None, width: int = 80, is_terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    reports = [build_rank_report(rank, options) for rank in open_dump(path).ranks()]
    print_reports(console, reports, has_filter=options is not None and options.filter is not None)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def model_dump(folder: Path, **more: Any) -> Path:
    return write_rank(folder / "step0" / "rank0", model_records(), model_parents(), stacks=MODEL_STACKS, **more)


def test_what_a_person_with_a_wrong_loss_sees_first(tmp_path: Path) -> None:
    model_dump(tmp_path)
    lines = render(tmp_path).splitlines()
    assert lines[1] == "step0/rank0  statistics · mix · pytorch 2.13.0 · 10 records"
    assert lines[2] == (
        "  coverage    10 calls seen · 8 recorded (forward and backward) · 1 filtered · 40 excluded"
        " · 0 failed inside capture · NOT SEEN: compiled region (2)"
        '; to look inside compiled functions, record with "compiled": "eager"'
    )
    assert lines[3] == "  NaN         Torch.log.0.forward  output.0  NaN 2 of 6  arises here"
    assert lines[4] == "              in block  /x/model.py:18 in forward: y = torch.log(x)"
    assert lines[5] == "              7 other records carry NaN on"
    assert lines[6] == "  scalars     Functional.mse_loss.0.forward nan"
    assert lines[7] == "  gradients   2 parameters, 1 of them with NaN or Inf; the largest norm is 0, of block.fc.bias"
    assert lines[8] == "              all zero: block.fc.bias"


def test_values_that_verify_mode_found_changed_are_shown(tmp_path: Path) -> None:
    model_dump(tmp_path, run={**RUN, "coverage": {**RUN["coverage"], "stale": 2}})
    assert "2 STALE values, found by verify mode" in render(tmp_path, width=400).splitlines()[2]


def test_the_tree_has_one_line_a_result(tmp_path: Path) -> None:
    model_dump(tmp_path)
    tree = render(tmp_path).split("\n\n")[1]
    assert tree == "\n".join(
        [
            "forward                       shape   norm  max  min  mean  NaN, Inf  dtype    slot",
            "Net                           [2, 3]     1    1    1     1  NaN 2     float32",
            "└─ block: Block               [2, 3]     1    1    1     1  NaN 2     float32",
            "   ├─ fc: Linear              [2, 3]     2    2    2     2            float32",
            "   │  └─ Functional.linear.0  [2, 3]     2    2    2     2            float32",
            "   └─ Torch.log.0             [2, 3]     1    1    1     1  NaN 2     float32",
            "Functional.mse_loss.0         []       nan  nan  nan   nan  NaN 1     float32",
        ]
    )


def test_a_filter_shows_every_tensor_and_the_source_line(tmp_path: Path) -> None:
    model_dump(tmp_path)
    text = render(tmp_path, ShowOptions(filter="Torch.log"))
    assert "Module.block.Block.forward.0\n" in text
    assert "Torch.log.0.forward" in text
    assert "input.0" in text
    assert "/x/model.py:18 in forward: y = torch.log(x)" in text
    assert "arises" not in text


def test_a_filter_that_finds_nothing_says_so(tmp_path: Path) -> None:
    model_dump(tmp_path)
    assert "no record has this text" in render(tmp_path, ShowOptions(filter="nowhere"))


def test_a_pipe_gets_the_same_text_whatever_the_window(tmp_path: Path) -> None:
    model_dump(tmp_path)
    assert render(tmp_path, width=20) == render(tmp_path, width=400)


def test_no_line_is_wider_than_the_terminal(tmp_path: Path) -> None:
    model_dump(tmp_path)
    assert max(len(line) for line in render(tmp_path, width=60, is_terminal=True).splitlines()) <= 60


def test_calls_that_failed_are_marked_with_their_error(tmp_path: Path) -> None:
    records = {"Torch.matmul.0.forward": {"input_args": [tensor()], "failed": "RuntimeError: shapes differ"}}
    text = render(write_rank(tmp_path, records))
    assert "  failed      Torch.matmul.0.forward  RuntimeError: shapes differ\n" in text
    assert text.rstrip().endswith("failed: RuntimeError: shapes differ")


def test_calls_by_the_framework_are_tagged_and_folded(tmp_path: Path) -> None:
    records = {f"Tensor.add_.{i}.forward": forward(caller="optimizer") for i in range(5)}
    text = render(write_rank(tmp_path, {"Torch.add.0.backward": forward(), **records}))
    assert "\noptimizer " in text
    assert "5 calls by the framework itself" in text
    assert "optimizer · --filter optimizer shows them" in text
    assert "Tensor.add_.3.forward" in render(tmp_path, ShowOptions(filter="optimizer"))


def test_a_mask_is_one_finding_however_many_layers_use_it(tmp_path: Path) -> None:
    mask = {**tensor(0.0, inf_count=3), "Min": float("-inf")}
    records = {f"Tensor.masked_fill.{i}.forward": forward(tensor(), output=mask) for i in range(12)}
    stacks = {"0": [list(records), ["File /x/a.py, line 3, in forward, \n a = a.masked_fill(m, -inf)"]]}
    text = render(write_rank(tmp_path, records, stacks=stacks))
    assert (
        "output.0  -Inf 3 of 6  arises here, and in 11 more calls from this line  (only -Inf: usual in a mask)" in text
    )
    assert text.count("/x/a.py:3") == 1


def test_undefined_memory_is_named_once_and_nothing_is_made_of_what_it_holds(tmp_path: Path) -> None:
    garbage = {**tensor(0.0), "shape": [], "Max": float("nan"), "nan_count": 1, "note": "undefined memory"}
    records = {"Torch.empty.0.forward": forward(output=garbage, note="undefined memory")}
    write_rank(tmp_path / "step0" / "rank0", records)
    text = render(tmp_path, width=200)
    (line,) = [line for line in text.splitlines() if line.startswith("Torch.empty.0")]
    assert line.count("undefined memory") == 1
    assert "NaN" not in text and "scalars" not in text


def test_a_killed_run_says_how_to_close_it(tmp_path: Path) -> None:
    folder = write_killed_rank(tmp_path / "a b" / "step0" / "rank", model_records())
    text = render(tmp_path / "a b")
    assert "  incomplete  the run was killed, or is still writing" in text
    assert f"tensorprobe recover '{folder}'" in text
    assert "its last line was cut off" in text
    assert "coverage    not stated in this dump" in text


def test_a_run_that_an_exception_ended_says_which(tmp_path: Path) -> None:
    text = render(write_rank(tmp_path, {}, run={**RUN, "complete": False, "ended": "ValueError: no such thing"}))
    assert (
        "  incomplete  the run ended in this step with ValueError: no such thing; all that it recorded is here" in text
    )
    assert "recover" not in text


def test_a_recovered_run_says_so(tmp_path: Path) -> None:
    assert "its files were recovered" in render(write_rank(tmp_path, {}, run={**RUN, "recovered": True}))


def test_checksums_reasons_and_arguments_have_their_columns(tmp_path: Path) -> None:
    meta = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [4], "Max": None, "reason": "meta tensor"}
    records = {
        "Torch.add.0.forward": forward(output=tensor(1.0, md5="7d962681")),
        "Torch.add.1.forward": forward(output=meta),
        "Torch.add.2.forward": forward(output={"type": "int", "value": 7}),
        "Torch.add.3.forward": forward(output={"type": "str", "value": "a long text that is no number"}),
    }
    text = render(write_rank(tmp_path, records))
    for word in ("checksum", "7d962681", "meta tensor", "bfloat16", " 7 ", "'a long text that is no number'"):
        assert word in text


def test_with_task_structure_there_are_no_empty_columns(tmp_path: Path) -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "requires_grad": False}
    text = render(write_rank(tmp_path, {"Torch.add.0.forward": forward(output=leaf)}))
    assert "forward      shape  dtype" in text
    assert "max" not in text


def test_saved_values_have_their_own_heading(tmp_path: Path) -> None:
    write_lines(tmp_path / "debug.json", HEADER, {"x.0.debug": tensor(), "n.0.debug": {"a": [tensor(2.0)]}}, "}}")
    text = render(tmp_path)
    assert "2 saved values" in text
    assert "saved values" in text.splitlines()[4]
    assert "a.0" in text


def test_several_ranks_end_with_one_line_each(tmp_path: Path) -> None:
    model_dump(tmp_path)
    write_rank(tmp_path / "step0" / "rank1", {"Torch.add.0.forward": forward()})
    lines = render(tmp_path).splitlines()
    assert lines[-2:] == [
        "  step0/rank0            10 records      8 with NaN      0 with Inf    0 failed",
        "  step0/rank1             1 record       0 with NaN      0 with Inf    0 failed",
    ]


def test_one_unreadable_rank_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = model_dump(tmp_path)
    (folder / "dump.json").write_text("{")
    report = read_rank_report(next(open_dump(tmp_path).ranks()), ShowOptions())
    console = Console(file=io.StringIO(), width=80)
    print_reports(console, [report])
    assert isinstance(console.file, io.StringIO)
    assert "  unreadable  " in console.file.getvalue()
    assert report.error
    assert "is not whole" in report.error


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_name_cannot_steer_the_terminal(tmp_path: Path, is_terminal: bool) -> None:
    evil = "Torch.\x1b]0;owned\x07\x1b[31m\ud800[bold]x.0.forward"
    fields = {**forward(output=tensor(1.0, nan_count=1)), "failed": "\x1b[2J", "module_path": "a\nb"}
    write_lines(tmp_path / "dump.json", HEADER, {}, "")
    with (tmp_path / "dump.json").open("a") as file:
        file.write(f"\n{json.dumps(evil)}: {json.dumps(fields)}\n}}}}\n")
    text = render(tmp_path, width=300, is_terminal=is_terminal)
    assert "\x1b[31m" not in text
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\\x1b[31m\\ud800[bold]x" in text
    text.encode("utf-8")


def test_an_ascii_terminal_gets_ascii_guides(tmp_path: Path) -> None:
    model_dump(tmp_path)
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, "ascii", errors="backslashreplace"), width=80)
    print_reports(console, [build_rank_report(next(open_dump(tmp_path).ranks()))])
    console.file.flush()
    assert b"`- block: Block" in raw.getvalue()


def test_recomputed_calls_stand_in_the_backward_and_differences_stand_out(tmp_path: Path) -> None:
    records = {
        "Torch.sin.0.forward": forward(tensor()),
        "Functional.dropout.0.forward": forward(tensor()),
        "Torch.sin.0.recompute": forward(tensor(), recomputed=True, differs_from_forward=[]),
        "Functional.dropout.0.recompute": forward(tensor(), recomputed=True, differs_from_forward=["output.0"]),
    }
    coverage = {**RUN["coverage"], "recomputed": 2, "recomputed_differently": 1}  # type: ignore[dict-item]
    write_rank(tmp_path / "step0" / "rank", records, run={**RUN, "coverage": coverage})
    text = render(tmp_path, width=200)
    assert "2 recomputed in backward · 1 RECOMPUTED DIFFERENTLY" in text
    backward = text[text.index("\nbackward") :].splitlines()
    assert "recompute\n" not in text and text.count("\nbackward") == 1
    assert backward[2].startswith("Torch.sin.0") and backward[2].endswith("recomputed")
    assert backward[3].endswith("RECOMPUTED DIFFERENTLY: output.0")


LONG_NAME = "Functional.scaled_dot_product_attention.123"
LONG_RECORDS = {
    f"{LONG_NAME}.forward": forward(
        output={
            **tensor(),
            "dtype": "torch.bfloat16",
            "shape": [32, 128, 4096],
            "Max": 12.345678,
            "Min": -0.00012345678,
            "Mean": -1.2345678e-05,
            "Norm": 98765.4321,
        }
    )
}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_window_shows_shape_norm_and_dtype(tmp_path: Path, width: int) -> None:
    write_rank(tmp_path, LONG_RECORDS)
    text = render(tmp_path, width=width, is_terminal=True)
    (line,) = [line for line in text.splitlines() if "attention.123" in line]
    assert "[32,128,4096]" in line.replace(", ", ",")
    assert "9.88e+04" in line or "98765" in line
    assert line.rstrip().endswith(("bf16", "bfloat16"))
    assert len(line) <= width


def test_a_narrow_window_takes_digits_and_the_middle_of_names_and_a_wide_one_nothing(tmp_path: Path) -> None:
    write_rank(tmp_path, LONG_RECORDS)
    narrow = render(tmp_path, width=80, is_terminal=True)
    assert "…" in narrow and "12.3" in narrow and "12.346" not in narrow
    wide = render(tmp_path, width=200, is_terminal=True)
    assert LONG_NAME in wide and "12.346" in wide and "bfloat16" in wide


@pytest.mark.parametrize("width", [80, 200])
def test_columns_stand_below_each_other_also_where_names_are_chinese(tmp_path: Path, width: int) -> None:
    names = (f"Module.{'注意力头的名字' * 3}.Linear.forward.0", f"Module.{'attention' * 6}.Linear.forward.0")
    write_rank(tmp_path, {name: forward(tensor()) for name in names})
    lines = [line for line in render(tmp_path, width=width, is_terminal=True).splitlines() if "[" in line]
    assert len(lines) == 2 and len({cell_len(line.partition("[")[0]) for line in lines}) == 1
    assert max(map(cell_len, lines)) <= width and all("float32" in line or "f32" in line for line in lines)


def test_one_record_that_carries_nan_on_is_told_as_one(tmp_path: Path) -> None:
    nan = {"Max": float("nan"), "Min": float("nan"), "Mean": float("nan"), "Norm": float("nan"), "nan_count": 1}
    first, second = forward(tensor(**nan)), forward(tensor(**nan))
    second["input_args"] = [{**tensor(**nan), "source": "Torch.log.0.forward"}]
    write_rank(tmp_path, {"Torch.log.0.forward": first, "Torch.exp.0.forward": second})
    assert "              1 other record carries NaN on" in render(tmp_path).splitlines()


def test_no_compiled_region_needs_no_word_on_how_to_see_inside(tmp_path: Path) -> None:
    model_dump(tmp_path, run={**RUN, "coverage": {**RUN["coverage"], "unseen": {}}})
    assert "compiled" not in render(tmp_path)
