"""Operations that no patch sees, because the program keeps functions and primitives in objects of its own."""

from __future__ import annotations

from pathlib import Path

import mindspore
import pytest
from mindspore import Tensor, nn, ops

from tensorprobe.capture.mindspore.call_mode import NOT_NAMED
from tests.capture.mindspore.test_gradient import numbers, record

KEPT = {"split": ops.Split(0, 3), "sigmoid": ops.Sigmoid()}


class Keeper(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        first, _, third = KEPT["split"](KEPT["sigmoid"](x))
        return (first * third).sum()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_with_the_model_they_are_recorded_by_the_names_of_their_kernels(level: str, tmp_path: Path) -> None:
    model = Keeper()
    dump = record(tmp_path, mindspore.grad(model), numbers(0, 1, 0), model=model, level=level)
    split = dump.records["Primitive.Split.0.forward"]
    assert [leaf["source"] for leaf in split["input_args"][:1]] == ["Primitive.Sigmoid.0.forward"]
    assert [leaf["shape"] for leaf in split["output"]] == [[1], [1], [1]]
    product = dump.records["Tensor.__mul__.0.forward"]
    assert [leaf["source"] for leaf in product["input_args"]] == ["Primitive.Split.0.forward"] * 2


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_their_gradients_are_recorded_once_their_results_are_used(level: str, tmp_path: Path) -> None:
    model = Keeper()
    dump = record(tmp_path, mindspore.grad(model), numbers(0, 1, 0), model=model, level=level)
    arrived = dump.tensors(dump.records["Primitive.Split.0.backward"]["input"])
    assert [None if one is None else one.tolist() for one in arrived] == [[0.5], None, [0.5]]
    assert dump.tensors(dump.records["Primitive.Sigmoid.0.backward"]["output"])[0].tolist() == [0.125, 0.0, 0.125]
    assert dump.coverage["unseen"] == {}


def test_without_the_model_they_are_counted(tmp_path: Path) -> None:
    dump = record(tmp_path, Keeper(), numbers(0, 1, 0))
    assert list(dump.records) == ["Tensor.__mul__.0.forward", "Tensor.sum.0.forward"]
    assert dump.coverage["unseen"] == {NOT_NAMED: 2}
