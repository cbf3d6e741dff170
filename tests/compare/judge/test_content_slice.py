"""Where two programs that are written differently part is found by what they compute, not by what it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.compare.judge.content_slice import ContentFinder, Parting
from tests.compare.judge.small_step import Fault, by_columns, by_rows


def part(tmp_path: Path, fault: Fault, **how: int) -> Parting | None:
    return ContentFinder(
        by_rows(tmp_path / "reference"), by_columns(tmp_path / "candidate", fault, **how)
    ).find_parting()


def names(parting: Parting | None) -> list[str]:
    assert parting is not None and parting.reference is not None and parting.candidate is not None
    return [parting.reference.name, parting.candidate.name]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("factor", [1.05, 1.001])
def test_the_call_that_is_given_the_same_and_returns_another_result_is_named(
    tmp_path: Path, factor: float, parts: int
) -> None:
    found = part(tmp_path, Fault(tanh=factor), parts=parts)
    assert names(found) == ["Torch.tanh.0.forward", "Tensor.tanh.0.forward"]
    assert found is not None and found.is_shared and not found.is_given_other
    assert found.because == "the inputs are the same, but the results differ"


def test_the_loss_itself_is_named_where_all_before_it_is_the_same(tmp_path: Path) -> None:
    assert names(part(tmp_path, Fault(loss=1.01))) == ["Torch.mean.0.forward", "Tensor.mean.0.forward"]


@pytest.mark.parametrize("factor", [1.05, 1.001])
def test_the_call_that_gives_another_gradient_back_is_named(tmp_path: Path, factor: float) -> None:
    found = part(tmp_path, Fault(tanh_back=factor))
    assert names(found) == ["Torch.tanh.0.backward", "Tensor.tanh.0.backward"]
    assert found is not None and found.is_shared
    assert found.because == "it receives the same gradient, but returns a different one"


def test_the_gradient_of_one_parameter_is_named_where_what_arrives_is_the_same(tmp_path: Path) -> None:
    found = part(tmp_path, Fault(last_weight_back=1.01))
    assert names(found) == ["Functional.linear.1.backward", "Torch.matmul.1.backward"]


def test_a_call_that_depends_on_a_parameter_is_named_before_a_table_that_differs_earlier(tmp_path: Path) -> None:
    found = part(tmp_path, Fault(tanh=1.05, table=1.05))
    assert names(found) == ["Torch.tanh.0.forward", "Tensor.tanh.0.forward"]


def test_a_table_is_named_where_nothing_else_begins_to_differ(tmp_path: Path) -> None:
    assert names(part(tmp_path, Fault(table=1.05))) == ["Torch.sin.0.forward", "Tensor.sin.0.forward"]


def test_an_end_that_nobody_takes_is_named_where_the_loss_and_the_gradients_are_the_same(tmp_path: Path) -> None:
    assert names(part(tmp_path, Fault(end=1.01))) == ["Torch.sigmoid.0.forward", "Tensor.sigmoid.0.forward"]


def test_programs_that_compute_the_same_part_nowhere(tmp_path: Path) -> None:
    assert part(tmp_path, Fault()) is None


def test_only_the_call_that_parts_is_a_beginning(tmp_path: Path) -> None:
    runs = by_rows(tmp_path / "reference"), by_columns(tmp_path / "candidate", Fault(tanh=1.05))
    finder = ContentFinder(*runs)
    begun = [[call.name for call in run.calls if finder.is_beginning(call)] for run in runs]
    assert begun == [["Torch.tanh.0.forward"], ["Tensor.tanh.0.forward"]]
