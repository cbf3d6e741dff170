"""Which value of a MindSpore run is which: by its source, its bits and its parameter's name, never by closeness.

The runs are written down here, as capture would write them: MindSpore is not needed to replay one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tensorprobe.errors import UsageError
from tensorprobe.replay.mindspore_bit import check_bits
from tensorprobe.replay.program import Program, read_program
from tensorprobe.store.reader import open_dump
from tests.compare.recording import Recording, Traced
from tests.integration.script import run_script

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 3)).astype(np.float32)
W = RNG.standard_normal((3, 3)).astype(np.float32)
RELU, SIGMOID = "Functional.relu", "Functional.sigmoid"


def relu(array: np.ndarray) -> np.ndarray:
    return np.maximum(array, 0)


def start() -> Recording:
    return Recording(framework="mindspore")


def read(run: Recording, folder: Path) -> Program:
    return read_program(next(open_dump(run.write(folder)).ranks()))


def numbers(program: Program, record: str) -> list[int | None]:
    """Of what a call was given."""
    operation = next(one for one in program.calls() if one.name == record)
    return [leaf.tensor for leaf in operation.inputs]


def result_number(program: Program, record: str, place: int = 0) -> int | None:
    operation = next(one for one in program.calls() if one.name == record)
    return list(operation.outputs)[place].tensor


def name_parameter(run: Recording, record: str, place: int, name: str) -> None:
    run.records[record]["input_args"][place]["parameter"] = name


def without_source(value: Traced) -> Traced:
    return Traced(value.array, None, value.requires_grad)


def test_an_input_is_the_result_of_its_source(tmp_path: Path) -> None:
    run = start()
    first = run.api(RELU, run.data(X), output=relu(X))
    run.api(RELU, run.data(X), output=relu(X))
    run.api(RELU, first, output=relu(X))
    program = read(run, tmp_path)
    assert numbers(program, f"{RELU}.2.forward") == [result_number(program, f"{RELU}.0.forward")]


def test_where_the_source_is_lost_the_same_bits_tell(tmp_path: Path) -> None:
    run = start()
    first = run.api(RELU, run.data(X), output=relu(X))
    run.api(SIGMOID, without_source(first), output=1 / (1 + np.exp(-first.array)))
    program = read(run, tmp_path)
    assert numbers(program, f"{SIGMOID}.0.forward") == [result_number(program, f"{RELU}.0.forward")]


def test_a_value_that_is_only_close_is_another(tmp_path: Path) -> None:
    run = start()
    first = run.api(RELU, run.data(X), output=relu(X))
    close = np.nextafter(first.array, np.float32(9))
    run.api(SIGMOID, run.data(close), output=1 / (1 + np.exp(-close)))
    program = read(run, tmp_path)
    assert numbers(program, f"{SIGMOID}.0.forward") != [result_number(program, f"{RELU}.0.forward")]


def test_zeros_are_not_taken_for_one_of_several_others(tmp_path: Path) -> None:
    run, nothing = start(), np.zeros((4, 3), np.float32)
    made = [run.api(RELU, run.data(-np.abs(X) - n), output=nothing) for n in (0, 1)]
    run.api(SIGMOID, without_source(made[0]), output=nothing + np.float32(0.5))
    program = read(run, tmp_path)
    others = [result_number(program, f"{RELU}.{n}.forward") for n in (0, 1)]
    assert numbers(program, f"{SIGMOID}.0.forward")[0] not in others


def test_equal_parameters_are_two_and_one_parameter_is_one(tmp_path: Path) -> None:
    run, zeros = start(), np.zeros(3, np.float32)
    for place, name in enumerate(("a.bias", "b.bias", "a.bias")):
        run.api("Tensor.__add__", run.data(X), run.data(zeros, requires_grad=True), output=X + zeros)
        name_parameter(run, f"Tensor.__add__.{place}.forward", 1, name)
    program = read(run, tmp_path)
    found = [numbers(program, f"Tensor.__add__.{place}.forward")[1] for place in range(3)]
    assert found[0] == found[2] != found[1]


def test_a_parameter_that_a_kernel_sees_without_its_name_is_known_by_its_bits(tmp_path: Path) -> None:
    run = start()
    for _ in range(2):
        run.api("Functional.matmul", run.data(X), run.data(W, requires_grad=True), output=X @ W)
    name_parameter(run, "Functional.matmul.0.forward", 1, "fc.weight")
    program = read(run, tmp_path)
    given = [numbers(program, f"Functional.matmul.{place}.forward")[1] for place in (0, 1)]
    assert given[0] == given[1]


def record_step(folder: Path, **edit: Any) -> Path:
    """relu(x @ w).sum(), scaled by a loss scale that the program gave to the backward pass."""
    run = start()
    product = run.api("Functional.matmul", run.data(X), run.data(W, requires_grad=True), output=X @ W)
    name_parameter(run, "Functional.matmul.0.forward", 1, "fc.weight")
    active = run.api(RELU, product, output=relu(product.array) + np.float32(edit.get("wrong", 0)))
    run.api("Tensor.sum", active, output=active.array.sum())
    scale = np.float32(128)
    slope = np.full((4, 3), scale, np.float32)
    back = slope * (product.array > 0) * np.float32(edit.get("slope", 1))
    run.backward("Tensor.sum.0", run.data(scale), run.data(slope))
    run.backward(f"{RELU}.0", run.data(slope), run.data(back))
    hooked = back * np.float32(edit.get("hook", 1))
    run.backward("Functional.matmul.0", run.data(hooked), [None, run.data(X.T @ hooked)])
    return run.write(folder)


def test_a_gradient_comes_back_through_a_call_that_has_no_backward_of_its_own(tmp_path: Path) -> None:
    run = start()
    product = run.api("Functional.matmul", run.data(X), run.data(W, requires_grad=True), output=X @ W)
    name_parameter(run, "Functional.matmul.0.forward", 1, "fc.weight")
    flat = run.api("Tensor.reshape", product, (12,), output=product.array.reshape(12))
    active = run.api(RELU, flat, output=relu(flat.array))
    run.api("Tensor.sum", active, output=active.array.sum())
    slope = np.ones(12, np.float32)
    back = slope * (flat.array > 0)
    run.backward("Tensor.sum.0", run.data(np.float32(1)), run.data(slope))
    run.backward(f"{RELU}.0", run.data(slope), run.data(back))
    run.backward("Functional.matmul.0", run.data(back.reshape(4, 3)), [None, run.data(X.T @ back.reshape(4, 3))])
    program = read(run, tmp_path)
    assert program.passes is not None
    (found,) = program.passes
    assert [root and root.tensor for root in found.roots] == [result_number(program, "Tensor.sum.0.forward")]


def record_added_step(folder: Path) -> Path:
    """square(sigmoid(relu(x)) + relu(x)).sum(), where the addition has no backward of its own."""
    run = start()
    active = run.api(RELU, run.data(X, requires_grad=True), output=relu(X))
    bent = 1 / (1 + np.exp(-active.array))
    squashed = run.api(SIGMOID, active, output=bent)
    added = run.api("Tensor.__add__", squashed, active, output=bent + active.array)
    total = run.api("Tensor.square", added, output=np.square(added.array))
    run.api("Tensor.sum", total, output=total.array.sum())
    slope = np.ones((4, 3), np.float32)
    run.backward("Tensor.sum.0", run.data(np.float32(1)), run.data(slope))
    given = 2 * added.array
    run.backward("Tensor.square.0", run.data(slope), run.data(given))
    through = given * bent * (1 - bent)
    run.backward(f"{SIGMOID}.0", run.data(given), run.data(through))
    run.backward(f"{RELU}.0", run.data(through + given), run.data((through + given) * (X > 0)))
    return run.write(folder)


def test_several_gradients_come_back_through_a_call_that_has_no_backward_of_its_own(tmp_path: Path) -> None:
    program = read_program(next(open_dump(record_added_step(tmp_path)).ranks()))
    assert program.passes is not None
    (found,) = program.passes
    assert [root and root.tensor for root in found.roots] == [result_number(program, "Tensor.sum.0.forward")]
    assert program.unrecorded == {"Tensor.__add__.0.forward"}


def test_no_sum_is_called_wrong_of_which_one_share_is_not_recorded(tmp_path: Path) -> None:
    (run,) = tensorprobe.truth(record_added_step(tmp_path)).runs
    assert run and not run.findings


def record_idle_cast(folder: Path, name: str, *, is_shared: bool) -> Path:
    """(sigmoid(h) + h).sum() of h = relu(x), where only the sigmoid takes h from a call that has nothing to do."""
    run = start()
    active = run.api(RELU, run.data(X, requires_grad=True), output=relu(X))
    idle = run.api(name, active, output=active.array.copy())
    bent = 1 / (1 + np.exp(-active.array))
    squashed = run.api(SIGMOID, idle, output=bent)
    added = run.api("Tensor.__add__", squashed, active, output=bent + active.array)
    run.api("Tensor.sum", added, output=added.array.sum())
    slope = np.ones((4, 3), np.float32)
    through = slope * bent * (1 - bent)
    whole = through + slope
    seen = whole if is_shared else through
    run.backward("Tensor.sum.0", run.data(np.float32(1)), run.data(slope))
    run.backward("Tensor.__add__.0", run.data(slope), [run.data(slope), run.data(slope)])
    run.backward(f"{SIGMOID}.0", run.data(slope), run.data(through))
    run.backward(f"{name}.0", run.data(seen), run.data(seen))
    run.backward(f"{RELU}.0", run.data(whole), run.data(whole * (X > 0)))
    return run.write(folder)


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [("Tensor.astype", True), ("Functional.cast", True), ("Tensor.reshape", False), ("Tensor.astype", False)],
)
def test_a_cast_to_the_type_that_it_has_gives_back_the_tensor_itself(
    tmp_path: Path, name: str, is_shared: bool
) -> None:
    """MindSpore's gradient of it is that of all that use the tensor, unless the recorded gradients say otherwise."""
    (run,) = tensorprobe.truth(record_idle_cast(tmp_path, name, is_shared=is_shared)).runs
    assert run.findings == []
    program = read_program(next(open_dump(tmp_path).ranks()))
    results = [result_number(program, one) for one in (f"{RELU}.0.forward", f"{name}.0.forward")]
    assert (results[0] == results[1]) == is_shared


def test_gradients_begin_where_nobody_gave_them_with_what_was_given(tmp_path: Path) -> None:
    program = read_program(next(open_dump(record_step(tmp_path)).ranks()))
    assert program.passes is not None
    (found,) = program.passes
    assert [root and root.tensor for root in found.roots] == [result_number(program, "Tensor.sum.0.forward")]
    (run,) = tensorprobe.truth(tmp_path).runs
    assert run and run.losses[0][0] == "Tensor.sum.0.forward"
    row = next(row for row in run.rows if row.record == "Functional.matmul.0.backward" and row.slot == "output.1")
    assert row.accumulated is not None and row.accumulated.relative < 1e-6


def test_what_is_wrong_is_named_as_in_a_run_of_pytorch(tmp_path: Path) -> None:
    edits: dict[str, dict[str, Any]] = {"kernel": {"wrong": 0.01}, "derivative": {"slope": 1.5}, "sum": {"hook": 1.5}}
    records = {"kernel": f"{RELU}.0.forward", "derivative": f"{RELU}.0.backward", "sum": "Functional.matmul.0.backward"}
    for kind, edit in edits.items():
        (run,) = tensorprobe.truth(record_step(tmp_path / kind, **edit)).runs
        assert (kind, records[kind]) in [(finding.kind, finding.record) for finding in run.findings]


def test_a_call_without_a_meaning_keeps_its_recorded_results_and_is_named(tmp_path: Path) -> None:
    run = start()
    first = run.api("Functional.of_tomorrow", run.data(X), output=X * 2)
    run.api(RELU, first, output=relu(X * 2))
    (found,) = tensorprobe.truth(run.write(tmp_path)).runs
    assert found and list(found.coverage.gaps) == ["Functional.of_tomorrow.0.forward"]
    assert (found.coverage.replayed, found.coverage.call_count) == (1, 2)


def test_a_parameter_that_changes_and_that_nobody_wrote_is_found(tmp_path: Path) -> None:
    for is_updated in (False, True):
        run = start()
        for place, weight in enumerate((W, W * 2)):
            run.api("Functional.matmul", run.data(X), run.data(weight), output=X @ weight)
            name_parameter(run, f"Functional.matmul.{place}.forward", 1, "fc.weight")
            if is_updated and place == 0:
                stem = "Primitive.opt.SGD"
                run.api(stem, run.data(W), run.data(W), output=W, fields={"caller": "optimizer"})
                name_parameter(run, f"{stem}.0.forward", 0, "fc.weight")
        (found,) = tensorprobe.truth(run.write(tmp_path / str(is_updated))).runs
        wanted = [] if is_updated else [("write", "Functional.matmul.1.forward")]
        assert [(finding.kind, finding.record) for finding in found.findings] == wanted


def test_a_mindspore_dump_is_replayed_where_there_is_no_mindspore(tmp_path: Path) -> None:
    record_step(tmp_path)
    program = (
        "import sys; sys.modules['mindspore'] = None\n"
        "import tensorprobe\n"
        f"found = tensorprobe.truth({str(tmp_path)!r})\n"
        "print(bool(found), found.runs[0].coverage.replayed)"
    )
    assert run_script(tmp_path, program).stdout.split() == ["True", "3"]


def test_a_hostile_nesting_ends_no_replay(tmp_path: Path) -> None:
    run = start()
    run.api(RELU, run.data(X), output=relu(X))
    tree: Any = run.records[f"{RELU}.0.forward"]["input_args"][0]
    for _ in range(300):
        tree = [tree]
    run.records[f"{RELU}.0.forward"]["input_args"] = tree
    (found,) = tensorprobe.truth(run.write(tmp_path)).runs
    assert list(found.coverage.gaps) == [f"{RELU}.0.forward"]


def test_bits_need_mindspore_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    with pytest.raises(UsageError, match="given again by MindSpore only: pip install mindspore"):
        check_bits(next(open_dump(record_step(tmp_path)).ranks()))
