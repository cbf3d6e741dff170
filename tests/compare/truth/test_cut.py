"""Through which value does a difference go?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorprobe.compare.truth.cut import find_cut
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.effect import Exchanged
from tensorprobe.compare.truth.observable import observe
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue
from tests.compare.truth.test_scattered import Array

X, W, V = (np.random.default_rng(seed).standard_normal((4, 4)) for seed in range(3))


def make_step(name: str, function: Callable[[Array], Array]) -> TrueStep:
    """`f(x) @ w @ v`, of which `f` is what the runs do not share; and beside it something that leads nowhere."""
    step = TrueStep(name, {}, [], Coverage())
    x, w, v = (add_value(step, array, None) for array in (X, W, V))
    aside = add_call(step, "flip", (x,), X[::-1] * (2.0 if name == "reference" else 3.0))
    first = add_call(step, "f", (x,), function(X))
    second = add_call(step, "matmul", (first, w), function(X) @ W)
    loss = add_call(step, "total", (second, v), np.array([(function(X) @ W @ V).sum()]))
    loss.is_root = True
    assert aside.number < loss.number
    return step


def add_value(step: TrueStep, array: Array, maker: str | None) -> TrueValue:
    value = TrueValue(len(step.values), np.asarray(array), "float32", maker, "output.0")
    step.values.append(value)
    return value


def add_call(step: TrueStep, op: str, given: tuple[TrueValue, ...], made: Array) -> TrueValue:
    name = f"Torch.{op}.{len(step.calls)}.forward"
    value = add_value(step, made, name)
    inputs = {f"input.{number}": one.number for number, one in enumerate(given)}
    call = TrueCall(name, len(step.calls), "pytorch", "Torch", op, None, None, inputs, {"output.0": value.number})
    step.calls[name] = call
    return value


@pytest.fixture
def counterparts() -> Counterparts:
    return Counterparts(make_step("reference", np.tanh), make_step("candidate", np.sin))


def test_the_first_value_whose_exchange_gives_the_loss_of_the_reference_is_found(counterparts: Counterparts) -> None:
    tried: list[Exchanged] = []

    def heals(exchanged: Exchanged) -> bool:
        tried.append(exchanged)
        return True

    cut = find_cut(counterparts, observe(counterparts), heals)

    assert cut is not None
    assert (cut.reference.maker, cut.candidate.maker) == ("Torch.f.1.forward", "Torch.f.1.forward")
    assert [list(one) for one in tried] == [[("Torch.f.1.forward", "output.0")]]
    np.testing.assert_array_equal(tried[0]["Torch.f.1.forward", "output.0"], np.tanh(X))


def test_there_is_none_where_no_exchange_gives_the_loss_of_the_reference(counterparts: Counterparts) -> None:
    assert find_cut(counterparts, observe(counterparts), lambda exchanged: False) is None


@pytest.mark.parametrize(("call", "is_behind"), [("Torch.f.1.forward", True), ("Torch.flip.0.forward", False)])
def test_only_what_leads_to_it_can_be_what_is_wrong(call: str, is_behind: bool, counterparts: Counterparts) -> None:
    cut = find_cut(counterparts, observe(counterparts), lambda exchanged: True)
    assert cut is not None
    steps = counterparts.steps
    one = Difference("source", steps["reference"].calls[call], steps["candidate"].calls[call], "")
    assert cut.is_behind(one, steps) is is_behind
