"""A single run as the data of its page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.replay.result import CallTruth, Coverage, Error, Truth
from tensorprobe.report.page.run import build_run_page
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import (
    MODEL_STACKS,
    backward,
    forward,
    model_parents,
    model_records,
    tensor,
    write_rank,
)

HALF = {"dtype": "torch.float16"}


def _build(path: Path, **more: Any) -> dict[str, Any]:
    page = build_run_page(open_dump(path), **more)
    json.dumps(page, allow_nan=False)
    return page


def _texts(page: dict[str, Any], table: str, column: str) -> list[str | None]:
    return [None if number < 0 else page["strings"][number] for number in page[table][column]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_rank(tmp_path / "step0" / "rank0", model_records(), model_parents(), stacks=MODEL_STACKS)
    return tmp_path


def test_every_call_and_every_tensor_is_in_the_columns_in_the_order_of_the_run(model: Path) -> None:
    page = _build(model)

    assert (page["kind"], page["version"], page["path"], page["places"]) == ("run", 1, str(model), ["step0/rank0"])
    assert _texts(page, "calls", "name_s") == list(model_records())
    assert {len(column) for column in page["calls"].values()} == {len(model_records())}
    assert len({len(column) for column in page["rows"].values()}) == 1
    linear = _texts(page, "calls", "name_s").index("Functional.linear.0.forward")
    first, count = page["calls"]["first_row"][linear], page["calls"]["row_count"][linear]
    assert _texts(page, "rows", "slot_s")[first : first + count] == ["input.0", "input.1", "output.0"]
    assert page["rows"]["call"][first : first + count] == [linear] * count
    assert _texts(page, "rows", "dtype_s")[first] == "float32"
    assert _texts(page, "rows", "shape_s")[first] == "[2, 3]"


def test_a_call_says_where_it_was_made_and_how_large_its_results_are(tmp_path: Path) -> None:
    leaf = tensor() | {"Max": 2.0, "Min": -7.0, "Mean": 0.5, "Norm": 9.0, "nan_count": 2, "inf_count": 1}
    record = forward(tensor(), output=leaf, module_path="block.fc")
    name = "Functional.linear.0.forward"
    stacks = {"0": [[name], ["File /x/model.py, line 18, in forward, \n x = self.fc(x)"]]}
    page = _build(write_rank(tmp_path, {name: record}, stacks=stacks))

    calls = page["calls"]
    numbers = {key: calls[key][0] for key in ("max_abs", "max", "min", "mean", "norm", "nan_count", "inf_count")}
    assert numbers == {
        "max_abs": 7.0,
        "max": 2.0,
        "min": -7.0,
        "mean": 0.5,
        "norm": 9.0,
        "nan_count": 2,
        "inf_count": 1,
    }
    assert _texts(page, "calls", "module_s") == ["block.fc"]
    assert _texts(page, "calls", "operation_s") == ["linear"]
    assert _texts(page, "calls", "location_s") == ["/x/model.py:18 in forward: x = self.fc(x)"]


def test_the_first_nan_comes_with_the_rows_that_fed_it(tmp_path: Path) -> None:
    bad = tensor(math.nan) | {"nan_count": 3, "inf_count": 0}
    records = {
        "Torch.add.0.forward": forward(tensor(), output=tensor()),
        "Torch.log.0.forward": forward(tensor(), tensor(2.0), output=bad),
        "Torch.mul.0.forward": forward(bad, output=bad),
    }
    page = _build(write_rank(tmp_path / "step0" / "rank0", records))

    found = page["run"]["nonfinite"]
    assert (
        found["headline"]
        == "NaN first arises in Torch.log.0.forward (step0/rank0): 3 of the 6 elements of output.0 are NaN."
    )
    assert found["call"] == 1
    first = page["calls"]["first_row"][1]
    assert found["fed_by"] == [first, first + 1]
    assert found["row"] == first + 2
    assert found["others"] == []
    assert page["rows"]["max"][first + 2] == "NaN"


def test_inf_in_a_mask_does_not_come_before_a_nan(tmp_path: Path) -> None:
    mask = tensor(0.0) | {"Min": -math.inf, "nan_count": 0, "inf_count": 4}
    bad = tensor(math.nan) | {"nan_count": 1, "inf_count": 0}
    records = {
        "Torch.masked_fill.0.forward": forward(tensor(), output=mask),
        "Torch.log.0.forward": forward(tensor(), output=bad),
    }
    found = _build(write_rank(tmp_path, records))["run"]["nonfinite"]
    assert (found["quality"], found["call"]) == ("NaN", 1)
    assert found["others"][0]["headline"].endswith(
        "4 of the 6 elements of output.0 are -Inf. Only -Inf: usual in a mask."
    )


def test_a_run_of_plain_numbers_has_no_nonfinite(tmp_path: Path) -> None:
    page = _build(write_rank(tmp_path, {"Torch.add.0.forward": forward(tensor())}))
    assert page["run"]["nonfinite"] is None
    assert page["run"]["overflow"] == []
    assert page["run"]["lost_digits"] is None


def test_the_gradients_of_modules_are_listed_by_parameter(tmp_path: Path) -> None:
    records = {
        "Module.fc.Linear.forward.0": forward(tensor()),
        "Module.fc.Linear.parameters_grad": {"weight": [tensor(0.5)], "bias": [tensor(0.25)]},
    }
    assert _build(write_rank(tmp_path, records))["run"]["gradients"] == [
        {"parameter": "fc.weight", "norm": 0.5, "call": 1, "place": 0},
        {"parameter": "fc.bias", "norm": 0.25, "call": 1, "place": 0},
    ]


def test_without_modules_a_gradient_is_what_the_backward_call_gave_back_for_its_parameter(tmp_path: Path) -> None:
    weight = tensor(parameter="fc.weight")
    given_back = {"input": [tensor()], "output": [tensor(0.1), tensor(0.75)]}
    records = {
        "Functional.linear.0.forward": forward(tensor(), weight),
        "Functional.linear.0.backward": given_back,
        "Torch.relu.0.backward": backward(tensor()),
    }
    assert _build(write_rank(tmp_path, records))["run"]["gradients"] == [
        {"parameter": "fc.weight", "norm": 0.75, "call": 1, "place": 0}
    ]


def test_results_of_half_precision_near_its_largest_number_are_listed_the_closest_first(tmp_path: Path) -> None:
    records = {
        "Torch.mul.0.forward": forward(tensor(60000.0, **HALF), output=tensor(40000.0, **HALF)),
        "Torch.mul.1.forward": forward(output=tensor(-65504.0, **HALF)),
        "Torch.mul.2.forward": forward(output=tensor(100.0, **HALF)),
        "Torch.mul.3.forward": forward(output=tensor(1e38, dtype="torch.bfloat16")),
        "Torch.mul.4.forward": forward(output=tensor(1e38)),
    }
    found = _build(write_rank(tmp_path, records))["run"]["overflow"]
    assert [(one["row"], one["dtype"], one["max_abs"]) for one in found] == [
        (2, "float16", 65504.0),
        (1, "float16", 40000.0),
        (4, "bfloat16", 1e38),
    ]
    assert found[0]["share"] == 1.0


def test_lost_digits_are_those_beyond_one_rounding_of_the_dtype(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank0", {"Torch.add.0.forward": forward(), "Torch.sub.0.forward": forward()})
    rows = [_truth_row("Torch.sub.0.forward", 1e-3), _truth_row("Torch.add.0.forward", 1e-9)]
    truth = Truth("step0/rank0", Coverage(), rows, [], [])

    found = _build(tmp_path, truths=[truth])["run"]["lost_digits"]

    assert [one["call"] for one in found] == [0, 1]
    assert found[0]["digits"] == 0.0
    assert found[1]["digits"] == pytest.approx(math.log10(1e-3 / 2**-24))


def _truth_row(record: str, relative: float) -> CallTruth:
    error = Error(relative, 1.0, relative, (0,), 1.0, 1.0, 0, 0)
    return CallTruth(record, "output.0", "float32", error)


def test_the_statements_are_those_of_show_with_their_weight(model: Path) -> None:
    statements = _build(model)["run"]["statements"]
    coverage = next(one for one in statements if one["label"] == "coverage")
    assert coverage["text"].startswith("10 calls seen")
    assert coverage["mark"] == "doubtful"
    nan = next(one for one in statements if one["label"] == "NaN")
    assert nan["text"].startswith("Torch.log.0.forward  output.0  NaN")
    assert nan["mark"] == "bad"


def test_the_settings_are_the_circumstances_of_run_json(model: Path) -> None:
    assert _build(model)["run"]["settings"] == {"framework": "pytorch", "versions": {"torch": "2.13.0"}}


def test_a_value_says_which_call_made_it(tmp_path: Path) -> None:
    records = {
        "Torch.add.0.forward": forward(tensor()),
        "Torch.mul.0.forward": forward(tensor(source="Torch.add.0.forward")),
    }
    page = _build(write_rank(tmp_path, records))
    assert _texts(page, "rows", "source_s") == [None, None, "Torch.add.0.forward", None]


def test_hostile_names_stay_plain_text(tmp_path: Path) -> None:
    name = "Module.<script>alert('x')</script>.Linear.forward.0"
    page = _build(write_rank(tmp_path, {name: forward()}))
    assert name in page["strings"]


def test_the_tensors_of_a_nan_and_of_what_is_near_overflow_are_drawn_in_advance(tmp_path: Path) -> None:
    bad = tensor(math.nan, data_name="bad.npy") | {"nan_count": 1, "inf_count": 0}
    records = {
        "Torch.add.0.forward": forward(output=tensor(data_name="plain.npy")),
        "Torch.log.0.forward": forward(tensor(data_name="gone.npy"), output=bad),
        "Torch.mul.0.forward": forward(output=tensor(60000.0, data_name="large.npy", **HALF)),
    }
    folder = write_rank(tmp_path / "step0" / "rank", records) / "dump_tensor_data"
    folder.mkdir()
    for name in ("plain", "bad", "large"):
        np.save(folder / f"{name}.npy", np.array([[1.0, math.nan]]))

    page = _build(tmp_path)

    slots = {row: page["strings"][page["calls"]["name_s"][call]] for row, call in enumerate(page["rows"]["call"])}
    assert [slots[int(row)] for row in page["details"]] == ["Torch.log.0.forward", "Torch.mul.0.forward"]
    assert next(iter(page["details"].values()))["heat"]["reference"] == [[1.0, "NaN"]]


@pytest.mark.parametrize(
    ("counts", "shape", "words"),
    [
        ({"nan_count": 6, "inf_count": 0}, [2, 3], "all 6 elements of output.0 are NaN."),
        ({"nan_count": 1, "inf_count": 0}, [2, 3], "1 of the 6 elements of output.0 is NaN."),
        ({"nan_count": 1, "inf_count": 0}, [], "output.0 is NaN."),
        ({}, [2, 3], "output.0 has NaN."),
    ],
)
def test_how_much_of_a_tensor_is_nan_is_said_in_plain_words(
    counts: dict[str, int], shape: list[int], words: str, tmp_path: Path
) -> None:
    bad = tensor(math.nan) | counts | {"shape": shape}
    found = _build(write_rank(tmp_path, {"Torch.log.0.forward": forward(tensor(), output=bad)}))["run"]["nonfinite"]
    assert found["headline"].endswith(f": {words}")
