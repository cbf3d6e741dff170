"""seed_all for MindSpore: what it fixes, that dropout lets everything through, and that restoring leaves nothing."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, dataset, mint, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops import Dropout as DropoutImportedEarly
from mindspore.ops import dropout as dropout_imported_early

from tensorprobe.capture.mindspore.seed import seed_all
from tensorprobe.errors import UsageError
from tests.integration.script import run_script

VARIABLES = ("PYTHONHASHSEED", "HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER")
SEED_MODULE = sys.modules["mindspore.common.seed"]
CELLS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout, mint.nn.Dropout2d)
FUNCTIONS = (ops.dropout, ops.dropout1d, ops.dropout2d, ops.dropout3d)
MINT_FUNCTIONS = (mint.nn.functional.dropout, mint.nn.functional.dropout2d)
PRIMITIVES = (ops.Dropout, ops.Dropout2D, ops.Dropout3D)


def read_state() -> dict[str, Any]:
    """All that seed_all may change, in a form that == compares."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "environment": {variable: os.environ.get(variable) for variable in VARIABLES},
        "random": random.getstate(),
        "numpy": (name, keys.tolist(), position, has_gauss, cached),
        "mindspore": (mindspore.get_seed(), dict(SEED_MODULE._KERNEL_SEED), dataset.config.get_seed()),
        "generator": (mindspore.get_rng_state().asnumpy().tolist(), mindspore.initial_seed()),
        "deterministic": mindspore.get_context("deterministic"),
        "functions": [(function, function.__code__) for function in (*FUNCTIONS, *MINT_FUNCTIONS)],
        "cells": [(cell.construct, cell.construct.__code__) for cell in CELLS],
        "primitives": [dict(vars(primitive)) for primitive in PRIMITIVES],
    }


@pytest.fixture(autouse=True)
def _nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    before = read_state()
    yield
    monkeypatch.undo()
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert read_state() == before


def draw() -> list[Any]:
    """One of each kind that a seed reaches."""
    return [
        random.random(),
        float(np.random.rand()),
        ops.randn(3).asnumpy().tolist(),
        ops.uniform((3,), Tensor(0.0), Tensor(1.0)).asnumpy().tolist(),
        initializer("normal", [3]).init_data().asnumpy().tolist(),
        nn.Dense(2, 2).weight.asnumpy().tolist(),
        nn.probability.distribution.Normal(0.0, 1.0, dtype=mindspore.float32).sample((3,)).asnumpy().tolist(),
        [int(row[0]) for row in dataset.NumpySlicesDataset(list(range(9)), shuffle=True).create_tuple_iterator()],
    ]


class TestSeeding:
    def test_the_same_seed_gives_the_same_numbers(self) -> None:
        with seed_all(7):
            first = draw()
        with seed_all(7):
            second = draw()
        with seed_all(8):
            third = draw()
        assert first == second
        assert all(one != other for one, other in zip(first, third, strict=True))

    def test_the_numbers_are_those_of_seeding_by_hand(self) -> None:
        with seed_all():
            drawn = draw()
        with seed_all(0):  # brings back what the next line changes
            mindspore.set_seed(1234)
            random.seed(1234)
            assert draw() == drawn

    def test_the_generator_of_mint_is_seeded(self) -> None:
        with seed_all(7):
            assert mindspore.initial_seed() == 7

    def test_dropout_repeats_when_it_stays(self) -> None:
        def drop() -> list[float]:
            ones = Tensor(np.ones(32, np.float32))
            return [*ops.dropout(ones).asnumpy(), *nn.Dropout(p=0.5).set_train()(ones).asnumpy()]

        with seed_all(7, rm_dropout=False):
            first = drop()
        with seed_all(7, rm_dropout=False):
            assert drop() == first
        assert 0.0 in first

    @pytest.mark.parametrize("seed", [0, 2**32 - 1])
    def test_the_ends_of_the_range_work(self, seed: int) -> None:
        with seed_all(seed):
            assert mindspore.get_seed() == seed
            assert mindspore.initial_seed() == seed
            ops.randn(3).asnumpy()

    def test_plain_seeding_sets_no_flag(self) -> None:
        before = read_state()
        with seed_all(rm_dropout=False):
            now = read_state()
        changed = {key for key in before if before[key] != now[key]}
        assert changed == {"environment", "random", "numpy", "mindspore", "generator"}

    def test_settings_that_come_before_the_first_operation_still_can(self, tmp_path: Path) -> None:
        program = (
            "import mindspore; from tensorprobe.mindspore import seed_all\n"
            "handle = seed_all(mode=True); mindspore.set_device('CPU'); mindspore.runtime.launch_blocking()\n"
            "handle.restore(); mindspore.set_deterministic(True)\n"
        )
        run_script(tmp_path, program, framework="mindspore")


class TestMode:
    def test_deterministic_algorithms_and_reductions(self) -> None:
        with seed_all(mode=True):
            assert mindspore.get_context("deterministic") == "ON"
            assert os.environ["HCCL_DETERMINISTIC"] == "true"

    def test_a_stricter_setting_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HCCL_DETERMINISTIC", "strict")
        with seed_all(mode=True):
            assert os.environ["HCCL_DETERMINISTIC"] == "strict"
        assert os.environ["HCCL_DETERMINISTIC"] == "strict"

    def test_a_program_that_was_deterministic_stays_so(self) -> None:
        mindspore.set_context(deterministic="ON")
        try:
            with seed_all(mode=True):
                pass
            assert mindspore.get_context("deterministic") == "ON"
            assert os.environ["HCCL_DETERMINISTIC"] == "true"
        finally:
            mindspore.set_context(deterministic="OFF")

    def test_a_program_that_has_ruled_it_out_is_told(self, tmp_path: Path) -> None:
        program = (
            "import mindspore; from tensorprobe.mindspore import seed_all\n"
            "mindspore.set_deterministic(False); seed_all(mode=True)\n"
        )
        done = run_script(tmp_path, program, framework="mindspore")
        assert "seed_all: the program has called mindspore.set_deterministic(False)" in done.stderr


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"seed": 2**32}, "seed must be from 0 to 4294967295"),
            ({"seed": True}, "seed must be an int, not True of type bool"),
            ({"mode": 1}, "mode must be True or False, not 1"),
            ({"rm_dropout": None}, "rm_dropout must be True or False, not None"),
        ],
    )
    def test_a_wrong_one_is_refused_and_changes_nothing(self, arguments: dict[str, Any], text: str) -> None:
        before = read_state()
        with pytest.raises(UsageError, match=text):
            seed_all(**arguments)
        assert read_state() == before


class TestRestore:
    def test_everything_comes_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONHASHSEED", "77")
        before = read_state()
        handle = seed_all(3, mode=True, rm_dropout=True)
        draw()
        handle.restore()
        assert read_state() == before

    def test_the_streams_go_on_where_they_were(self) -> None:
        with seed_all(1):
            draw()
            expected = draw()
        with seed_all(1):
            draw()
            with seed_all(2):
                draw()
            assert draw() == expected

    @pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
    def test_any_order_ends_where_it_began(self, order: tuple[int, ...]) -> None:
        before = read_state()
        handles = [seed_all(1, True, True), seed_all(2, rm_dropout=False), seed_all(3, True, True)]
        for index in order:
            handles[index].restore()
        assert read_state() == before

    def test_beside_torch(self) -> None:
        torch_seed = pytest.importorskip("tensorprobe.capture.torch.seed")
        functional = pytest.importorskip("torch.nn.functional")
        torch = pytest.importorskip("torch")
        outer, inner = torch_seed.seed_all(1, rm_dropout=True), seed_all(2, rm_dropout=True)
        outer.restore()
        assert os.environ["PYTHONHASHSEED"] == "2"
        assert is_inert()
        assert not torch.equal(functional.dropout(torch.ones(64)), torch.ones(64))
        inner.restore()


def is_inert() -> bool:
    return is_same(ops.dropout(ONES), ONES)


def is_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.asnumpy().tobytes() == other.asnumpy().tobytes()


ONES = Tensor(np.ones((4, 8), np.float32))
SHAPES = {"1d": (4, 6), "2d": (2, 4, 3, 3), "3d": (2, 4, 2, 3, 3), "": (3, 5)}


class Dropouts(nn.Cell):
    """Those of ops and nn, made when this is."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.kept_cell = nn.Dropout(p=0.5), nn.Dropout(0.5)
        self.cell_1d, self.cell_2d, self.cell_3d = nn.Dropout1d(0.5), nn.Dropout2d(0.5), nn.Dropout3d(0.5)
        self.primitive, self.primitive_2d, self.primitive_3d = ops.Dropout(0.5), ops.Dropout2D(0.5), ops.Dropout3D(0.5)

    def construct(self, x: Any, line: Any, plane: Any, volume: Any) -> Any:
        flat = (dropout_imported_early(x), ops.dropout(x, 0.9, True), self.cell(x), self.kept_cell(x))
        flat = (*flat, self.primitive(x)[0], ops.Dropout(keep_prob=0.3)(x)[0])
        lines = (ops.dropout1d(line, 0.5), self.cell_1d(line))
        planes = (ops.dropout2d(plane), self.cell_2d(plane), ops.Dropout2D(0.5)(plane)[0], self.primitive_2d(plane)[0])
        volumes = (ops.dropout3d(volume), self.cell_3d(volume), ops.Dropout3D(0.5)(volume)[0])
        return flat, lines, planes, (*volumes, self.primitive_3d(volume)[0])


class MintDropouts(nn.Cell):
    """Those of mint, of which none can drop on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.in_place, self.cell_2d = mint.nn.Dropout(), mint.nn.Dropout(0.1, True), mint.nn.Dropout2d()

    def construct(self, x: Any, line: Any, plane: Any, volume: Any) -> Any:
        flat = (mint.nn.functional.dropout(x), mint.nn.functional.dropout(x, 0.3, True, True))
        flat = (*flat, self.cell(x), self.in_place(x))
        return flat, (line,), (mint.nn.functional.dropout2d(plane), self.cell_2d(plane)), (volume,)


class Total(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dropouts = Dropouts()

    def construct(self, x: Any, line: Any, plane: Any, volume: Any) -> Any:
        total = 0.0
        for group in self.dropouts(x, line, plane, volume):
            for part in group:
                total = total + part.sum()
        return total


def values() -> list[Tensor]:
    numbers = np.random.RandomState(0)
    return [Tensor(numbers.randn(*SHAPES[kind]).astype(np.float32)) for kind in ("", "1d", "2d", "3d")]


def differing(network: Callable[..., Any]) -> list[tuple[int, int]]:
    """Which results are not the value that went in: its kind, and its place among those of that kind."""
    inputs = values()
    return [
        (kind, index)
        for kind, (given, group) in enumerate(zip(inputs, network(*inputs), strict=True))
        for index, result in enumerate(group)
        if not is_same(result, given)
    ]


ALL = [(kind, index) for kind, count in enumerate((6, 2, 4, 4)) for index in range(count)]
PRIMITIVES_KEPT_IN_C = [(2, 3), (3, 3)]


@pytest.fixture(params=["PyNative", "graph mode", "jit"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.GRAPH_MODE if request.param == "graph mode" else mindspore.PYNATIVE_MODE)
    yield request.param
    mindspore.set_context(mode=before)


def in_mode(network: nn.Cell, mode: str) -> Callable[..., Any]:
    return mindspore.jit(network) if mode == "jit" else network


class TestDropout:
    """Inert: the output is the input bit for bit, no random number is drawn, the gradient is the identity."""

    @pytest.mark.parametrize("kind", [Dropouts, MintDropouts])
    def test_all_of_them_let_everything_through(self, kind: type[nn.Cell], mode: str) -> None:
        with seed_all(rm_dropout=True):
            network = kind().set_train()
            state = read_state()
            assert differing(in_mode(network, mode)) == []
            assert read_state() == state

    @pytest.mark.parametrize("kind", [Dropouts, MintDropouts])
    def test_those_made_before_too(self, kind: type[nn.Cell], mode: str) -> None:
        with seed_all(rm_dropout=False):
            network = kind().set_train()
        with seed_all(rm_dropout=True):
            found = differing(in_mode(network, mode))
        assert found == (PRIMITIVES_KEPT_IN_C if kind is Dropouts and mode != "PyNative" else [])

    @pytest.mark.parametrize("kind", ["", "2d", "3d"])
    def test_a_primitive_gives_a_mask_that_keeps_everything(self, kind: str) -> None:
        made = {"": ops.Dropout, "2d": ops.Dropout2D, "3d": ops.Dropout3D}[kind]
        value = Tensor(np.ones(SHAPES[kind], np.float16))
        _, dropping = made(keep_prob=0.5)(value)
        with seed_all(rm_dropout=True):
            output, mask = made(keep_prob=0.5)(value)
        assert (mask.shape, mask.dtype) == (dropping.shape, dropping.dtype)
        assert mask.asnumpy().all()
        assert output is value

    def test_gradients_pass(self, mode: str) -> None:
        with seed_all(rm_dropout=True):
            gradients = mindspore.grad(in_mode(Total().set_train(), mode), (0, 1, 2, 3))(*values())
        assert [set(gradient.asnumpy().ravel()) for gradient in gradients] == [{6.0}, {2.0}, {4.0}, {4.0}]

    def test_layers_that_drop_inside(self, mode: str) -> None:
        x = Tensor(np.random.RandomState(0).randn(5, 2, 8).astype(np.float32))
        with seed_all(rm_dropout=True):
            layers = [
                nn.LSTM(8, 4, num_layers=2, dropout=0.5),
                nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.5),
            ]
            for layer in layers:
                run = in_mode(layer.set_train(), mode)
                first, second = (first_tensor(run(x)) for _ in range(2))
                assert is_same(first, second)

    def test_a_class_imported_early(self) -> None:
        with seed_all(rm_dropout=True):
            assert is_same(DropoutImportedEarly(0.5)(ONES)[0], ONES)

    def test_a_wrong_probability_is_still_an_error(self) -> None:
        with seed_all(rm_dropout=True):
            for make in (lambda: nn.Dropout(p=1.5), lambda: nn.Dropout2d(-1.0), lambda: ops.Dropout2D(7.0)):
                with pytest.raises(ValueError, match="must be"):
                    make()


def first_tensor(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


class TestDropoutLater:
    @pytest.mark.parametrize("arguments", [{}, {"mode": True}, {"rm_dropout": False}])
    def test_dropout_stays_and_nothing_is_said_unless_it_is_to_go(
        self, arguments: dict[str, bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        with seed_all(**arguments):
            assert not is_inert()
        assert caplog.messages == []

    def test_who_turns_dropout_off_is_told_in_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        with seed_all(rm_dropout=True):
            assert is_inert()
        assert caplog.messages == [
            "seed_all: dropout is off from here on, because rm_dropout is True; rm_dropout=False leaves it on"
        ]

    def test_what_was_made_meanwhile_drops_afterwards(self, mode: str) -> None:
        with seed_all(rm_dropout=True):
            network = Dropouts().set_train()
        with seed_all(rm_dropout=False):
            assert network.primitive.keep_prob == network.primitive_2d.keep_prob == 0.5
            assert differing(in_mode(network, mode)) == ALL

    def test_a_patch_over_ours_stays(self) -> None:
        original = ops.Dropout.__call__
        with seed_all(rm_dropout=True):
            ours = ops.Dropout.__call__

            def theirs(self: Any, x: Any) -> Any:
                return ours(self, x)

            ops.Dropout.__call__ = theirs
        try:
            assert ops.Dropout.__call__ is theirs
            assert not is_same(ops.Dropout(0.5)(ONES)[0], ONES)
        finally:
            ops.Dropout.__call__ = original
