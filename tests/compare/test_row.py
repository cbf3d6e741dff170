"""The table of a comparison: what stands in which column."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.measure.measurement import Measurement
from tensorprobe.compare.row import COLUMNS, Row, build_rows, count_rows
from tensorprobe.store.slot import PlainSlot
from tests.length import PATIENCE_SECONDS
from tests.report.comparison import FRAME, call, call_result, comparison, gelu_fault, pair, plain, rank_result, tensor


def rows_of(*values: Any, **more: Any) -> list[Row]:
    return build_rows(comparison(rank_result(call_result(values=values, **more))))


def test_there_is_one_row_a_pair_of_values_and_one_a_call_without_a_partner() -> None:
    found = gelu_fault()
    rows = build_rows(found)
    assert len(rows) == count_rows(found) == 9
    assert [(row.reference_name, row.candidate_name, row.role) for row in rows[2:4] + rows[-3:]] == [
        ("Functional.gelu.0.forward.input.0", "Functional.gelu.0.forward.input.0", "source"),
        ("Functional.gelu.0.forward.output.0", "Functional.gelu.0.forward.output.0", "source"),
        ("Functional.dropout.3.forward.kwargs.p", "Functional.dropout.3.forward.kwargs.p", "entered"),
        ("Tensor.add.7.forward", None, "not compared"),
        (None, "Tensor.mul.9.forward", "not compared"),
    ]


def test_a_row_says_where_it_stands_and_why() -> None:
    row = build_rows(gelu_fault())[3]
    assert (row.step, row.rank, row.status, row.error, row.tolerance) == (0, "rank", "different", 0.25, 1.2e-6)
    assert (row.rule, row.basis, row.module_path, row.direction) == ("same name", "tensor", "blocks.0", "forward")
    assert row.reference_location == row.candidate_location == "/x/model.py:18 in forward: y = F.gelu(x)"
    assert (row.reference_dtype, row.reference_shape) == ("torch.float32", (2, 3))
    assert row.reference_requires_grad is row.candidate_requires_grad is False


def test_what_has_no_direction_leaves_the_column_empty() -> None:
    saved = call("x.0.debug", kind="saved", direction="")
    alone = rank_result(call_result(), only_reference=(Unpaired(saved, None, ""),))
    assert build_rows(comparison(alone))[-1].direction is None


def test_a_value_of_a_group_stands_under_the_call_that_has_it() -> None:
    first, last = (
        call(name, tensor("input.0"), tensor("output.0")) for name in ("Torch.mul.0.forward", "Torch.add.0.forward")
    )
    values = [pair(first.slots[0], tensor("input.0"), "equal"), pair(last.slots[1], tensor("output.0"), "equal")]
    group = dataclasses.replace(call_result(values=values), reference=(first, last))
    rows = build_rows(comparison(rank_result(group)))
    assert [row.reference_name for row in rows] == ["Torch.mul.0.forward.input.0", "Torch.add.0.forward.output.0"]


def test_every_number_of_the_measurement_is_a_column() -> None:
    numbers: dict[str, Any] = {
        name: index
        for index, name in enumerate(Measurement.__slots__)
        if name not in ("basis", "problem", "is_other_shape", "fallback")
    }
    row = rows_of(pair(tensor(), tensor(), "different", measurement=Measurement("tensor", **numbers)))[0]
    kept = {name: value for name, value in numbers.items() if not name.startswith("norm_")}
    assert {name: getattr(row, name) for name in kept} == kept


def test_the_eight_statistics_and_their_differences() -> None:
    reference = tensor(max=4.0, min=-2, mean=0.0, norm=math.inf)
    candidate = tensor(max=5.0, min=-2, mean=0.5, norm=math.inf)
    row = rows_of(pair(reference, candidate, "different"))[0]
    assert (row.reference_max, row.candidate_max, row.max_difference, row.max_relative_difference) == (4, 5, 1, 0.25)
    assert (row.min_difference, row.min_relative_difference) == (0, 0.0)
    assert (row.mean_difference, row.mean_relative_difference) == (0.5, math.inf)
    assert (row.reference_norm, row.candidate_norm, row.norm_difference) == (math.inf, math.inf, 0)


def test_a_statistic_that_one_side_lacks_has_no_difference() -> None:
    row = rows_of(pair(tensor(max=None), tensor(max=1.0), "different"))[0]
    assert (row.reference_max, row.candidate_max, row.max_difference, row.max_relative_difference) == (
        None,
        1,
        None,
        None,
    )


def test_integers_are_subtracted_exactly_and_a_senseless_one_is_no_error() -> None:
    big = 2**60
    rows = rows_of(
        pair(tensor(max=big), tensor(max=big + 1), "different"),
        pair(tensor(max=10**400), tensor(max=1.5), "different"),
        pair(tensor(max=1.5), tensor(max=10**400), "different"),
    )
    assert rows[0].max_difference == 1
    assert rows[1].max_difference is rows[2].max_difference is None


def test_a_norm_that_the_dump_lacks_is_the_measured_one() -> None:
    measurement = Measurement("tensor", norm_reference=3.0, norm_candidate=4.0)
    row = rows_of(pair(tensor(norm=None), tensor(norm=None), "different", measurement=measurement))[0]
    assert (row.reference_norm, row.candidate_norm, row.norm_difference) == (3, 4, 1)


def test_the_files_of_both() -> None:
    row = rows_of(pair(tensor(data_name="a.pt"), tensor(data_name="b.npy")))[0]
    assert (row.reference_data_name, row.candidate_data_name) == ("a.pt", "b.npy")


def test_checksums_of_both() -> None:
    measurement = Measurement("checksum", is_equal=False)
    row = rows_of(pair(tensor(checksum="0a"), tensor(checksum="0b"), "different", measurement=measurement))[0]
    assert (row.basis, row.is_equal, row.reference_checksum, row.candidate_checksum) == ("checksum", False, "0a", "0b")


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        (plain("kwargs.p", 0.1), "0.1"),
        (plain("kwargs.p", "0.1"), "'0.1'"),
        (plain("kwargs.p", None), "None"),
        (PlainSlot("kwargs.p", "torch.Generator", None), "torch.Generator"),
        (plain("kwargs.p", [1, [2]]), "[1, [2]]"),
        (plain("kwargs.p", "x" * 2000), "'" + "x" * 998 + "…"),
        (plain("kwargs.p", 10**5000), "…"),
    ],
)
def test_an_argument_that_is_no_tensor_is_text(slot: PlainSlot, text: str) -> None:
    row = rows_of(pair(slot, slot))[0]
    assert row.reference_value == row.candidate_value == text
    assert row.basis is None


def test_an_argument_nested_without_end_is_no_error() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    assert rows_of(pair(plain("input.0", value), None, "different"))[0].reference_value in ("…", "[" * 999 + "…")


def test_a_value_that_only_one_side_has_leaves_the_other_name_empty() -> None:
    row = rows_of(pair(None, tensor("output.1"), "not comparable", reason="the reference has no output.1"))[0]
    assert (row.reference_name, row.candidate_name) == (None, "Functional.gelu.0.forward.output.1")
    assert row.reason == "the reference has no output.1"


def test_why_there_are_no_numbers_is_said() -> None:
    measurement = Measurement("tensor", problem="x.pt is missing")
    assert rows_of(pair(tensor(), tensor(), "not comparable", measurement=measurement))[0].reason == "x.pt is missing"


def test_a_saved_value_has_the_name_of_its_save() -> None:
    made = call_result("x.0.debug", values=(pair(tensor(""), tensor("")),))
    assert build_rows(comparison(rank_result(made)))[0].reference_name == "x.0.debug"


def test_a_value_of_a_group_is_named_by_the_call_that_has_it() -> None:
    first, last = tensor("input.0"), tensor("output.0", 2.0)
    group = (call("Torch.matmul.0.forward", first), call("Functional.softmax.0.forward", last))
    fused = call("Functional.scaled_dot_product_attention.0.forward", first, last)
    made = call_result(values=(pair(first, first), pair(last, last)))
    made.reference, made.candidate, made.rule = group, (fused,), "group"
    rows = build_rows(comparison(rank_result(made)))
    assert [row.reference_name for row in rows] == [
        "Torch.matmul.0.forward.input.0",
        "Functional.softmax.0.forward.output.0",
    ]
    assert {row.candidate_name for row in rows} == {f"{fused.name}.input.0", f"{fused.name}.output.0"}


def test_an_unpaired_call_names_what_comes_nearest() -> None:
    near = Unpaired(call("Torch.add.1.forward", caller="optimizer"), call("Torch.add.0.forward"), "already paired")
    far = Unpaired(call("Torch.add.2.forward"), None, "")
    rows = build_rows(comparison(rank_result(only_reference=(near,), only_candidate=(far,))))[-2:]
    assert rows[0].reason == "only in the reference; nearest Torch.add.0.forward: already paired"
    assert rows[0].caller == "optimizer"
    assert rows[1].reason == "only in the candidate"
    assert {row.status for row in rows} == {"not comparable"}


def test_steps_and_ranks_are_told_apart() -> None:
    rows = build_rows(comparison(rank_result(step=0, rank="rank1"), rank_result(step=2, rank="proc12")))
    assert [(row.step, row.rank) for row in rows[::2]] == [(0, "rank1"), (2, "proc12")]


def test_a_location_that_follows_no_form_stays_as_it_is() -> None:
    row = rows_of(pair(tensor(), tensor()), reference_location="somewhere\n", candidate_location=FRAME)[0]
    assert row.reference_location == "somewhere"


def test_the_rows_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = gelu_fault().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == 9
    assert list(frame[frame.status == "different"].role.unique()) == ["source", "propagated", "entered"]
    assert frame.error.dtype == "float64"


def test_without_pandas_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pandas'] = None\n"
        "from tensorprobe.errors import UsageError\n"
        "from tests.report.comparison import gelu_fault\n"
        "assert len(gelu_fault().rows) == 9\n"
        "try:\n    gelu_fault().to_pandas()\nexcept UsageError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == "to_pandas() needs pandas: pip install pandas. Without it, use .rows\n"
