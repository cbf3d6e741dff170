"""Deeply nested programs run captured as they run plain, and trees of cells may be of any depth and any manners."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import tensorprobe
from tests.capture.mindspore.dump import only_step

NEARLY_FULL = "call where Python's stack was nearly used up"
LIMIT = 500
"""Smaller than Python's own, so that little is enough to use it up."""
MAKING = 5000
"""MindSpore itself recurses where cells are made and put together."""


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    assert sys.getrecursionlimit() == LIMIT
    sys.setrecursionlimit(before)


class Nest(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(x)


def make_nest(depth: int) -> nn.Cell:
    sys.setrecursionlimit(MAKING)
    mindspore.set_seed(0)
    model: nn.Cell = nn.ReLU()  # without a parameter, whose name would be too long for MindSpore
    for _ in range(depth):
        model = Nest(model)
    model(ones())  # the first call of a cell takes more of the stack than all others
    sys.setrecursionlimit(LIMIT)
    return model


class Tree(nn.Cell):
    """A program that recurses by itself, without cells in cells, and calls MindSpore at every level."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        sys.setrecursionlimit(LIMIT)
        self.depth = depth

    def construct(self, x: Tensor) -> Tensor:
        return self.descend(x, self.depth)

    def descend(self, x: Tensor, depth: int) -> Tensor:
        return ops.sin(self.descend(ops.mul(x, 0.99), depth - 1)) if depth else x


PROGRAMS = {"cells": make_nest, "functions": Tree}


def ones() -> Tensor:
    return Tensor(np.ones((1, 2), np.float32))


def deepest(program: str) -> int:
    """The deepest of these programs that runs plain."""
    least, most = 1, LIMIT
    while least < most:
        depth = (least + most + 1) // 2
        model = PROGRAMS[program](depth)
        try:
            model(ones())
            least = depth
        except RecursionError:
            most = depth - 1
    return least


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.some(2)
def test_what_just_runs_plain_runs_captured_with_the_same_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str, level: str
) -> None:
    model = PROGRAMS[program](deepest(program))
    plain = model(ones()).asnumpy()
    with tensorprobe.capture(model, tmp_path, level=level):
        assert np.array_equal(model(ones()).asnumpy(), plain)
    coverage = only_step(tmp_path).read("run.json")["coverage"]
    assert coverage["failed"] == 0
    if level == "mix":
        assert coverage["unseen"][NEARLY_FULL] > 5 and coverage["recorded"] > 40
        assert len([text for text in caplog.messages if text.startswith("Python's stack is nearly used up")]) == 1


class Endless(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return self(x * 2)


class EndlessFunction(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return self.construct(ops.sin(x)) + 1


@pytest.mark.parametrize("kind", [Endless, EndlessFunction])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.some(2)
def test_a_program_that_recurses_for_ever_ends_as_it_would_and_its_dump_is_whole(
    tmp_path: Path, kind: type[nn.Cell], level: str
) -> None:
    sys.setrecursionlimit(LIMIT)
    model = kind()
    with pytest.raises(RecursionError), tensorprobe.capture(model, tmp_path, level=level):
        model(ones())
    assert sys.getrecursionlimit() == LIMIT
    with tensorprobe.capture(nn.ReLU(), tmp_path / "second", level="mix"):  # nothing is left standing aside
        ops.sin(ones())
    assert "Functional.sin.0.forward" in only_step(tmp_path / "second").records


class Deep(nn.Cell):
    """Cells in cells, deeper than the stack, of which it calls the innermost."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.fc = nn.Dense(2, 2)
        self.tree = inner = Nest(nn.ReLU())
        for _ in range(depth):
            inner.inner = Nest(nn.ReLU())
            inner = inner.inner
        self.__dict__["innermost"] = inner

    def construct(self, x: Tensor) -> Tensor:
        return self.__dict__["innermost"](self.fc(x))


def test_a_tree_that_is_deeper_than_the_stack_is_recorded(tmp_path: Path) -> None:
    sys.setrecursionlimit(MAKING)
    model = Deep(LIMIT)
    model(ones())
    sys.setrecursionlimit(LIMIT)
    with tensorprobe.capture(model, tmp_path, level="mix"):
        model(ones())
    dump = only_step(tmp_path)
    assert f"Cell.{'.'.join(['tree', *['inner'] * LIMIT])}.Nest.forward.0" in dump.records
    assert "Cell.fc.Dense.forward.0" in dump.records
    assert dump.read("run.json")["coverage"]["failed"] == 0


def refuse(*_: Any, **__: Any) -> Any:
    raise ValueError("not in this class")


@pytest.mark.parametrize("name", ["cells_and_names", "name_cells", "cells", "parameters_and_names", "get_parameters"])
@pytest.mark.parametrize("has_model", [True, False])
def test_methods_of_a_cell_that_raise_hinder_nothing(tmp_path: Path, name: str, has_model: bool) -> None:
    sys.setrecursionlimit(LIMIT)
    model = nn.SequentialCell(nn.Dense(2, 2), Nest(nn.Dense(2, 2)), nn.Dense(2, 2))
    model(ones())
    model[1].__class__ = type("Refusing", (Nest,), {name: refuse})
    with tensorprobe.capture(model, tmp_path, level="mix" if has_model else "L1"):
        model(ones())
    dump = only_step(tmp_path)
    assert dump.read("run.json")["coverage"]["failed"] == 0
    assert {"0", "1.inner", "2"} <= {fields.get("module_path") for fields in dump.records.values()}
