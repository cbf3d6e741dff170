"""Through which value does a difference go?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorprobe.compare.truth.cut import Cut, find_cut
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.effect import Exchanged, Trial
from tensorprobe.compare.truth.observable import observe
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import TrueCall, TrueStep, TrueValue
from tensorprobe.replay.true_step_builder import Keeping
from tests.compare.truth.test_scattered import Array

X, W, V = (np.random.default_rng(seed).standard_normal((4, 4)) for seed in range(3))
Function = Callable[[Array], Array]


def make_step(name: str, first: Function, last: Function = np.asarray) -> TrueStep:
    """`g(f(x) @ w) @ v`, of which `f` is what the runs do not share; and beside it something that leads nowhere."""
    step = TrueStep(name, {}, [], Coverage())
    x, w, v = (add_value(step, array, None) for array in (X, W, V))
    aside = add_call(step, "flip", (x,), X[::-1] * (2.0 if name == "reference" else 3.0))
    made = add_call(step, "f", (x,), first(X))
    product = add_call(step, "matmul", (made, w), first(X) @ W)
    changed = add_call(step, "g", (product,), last(product.array)) if last is not np.asarray else product
    loss = add_call(step, "total", (changed, v), np.array([(changed.array @ V).sum()]))
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


def find(counterparts: Counterparts, exchanged: TrueStep) -> tuple[Cut | None, list[Exchanged]]:
    """`exchanged`: what the candidate becomes with the reference's value in the place of its own."""
    tried: list[Exchanged] = []

    def replay(put: Exchanged, keeping: Keeping) -> TrueStep:
        tried.append(put)
        return exchanged

    observed = observe(counterparts)
    return find_cut(counterparts, observed, Trial(observed, counterparts.steps["candidate"], replay)), tried


def test_the_first_value_whose_exchange_gives_the_loss_of_the_reference_is_found(counterparts: Counterparts) -> None:
    cut, tried = find(counterparts, make_step("candidate", np.tanh))

    assert cut is not None
    assert (cut.reference.maker, cut.candidate.maker) == ("Torch.f.1.forward", "Torch.f.1.forward")
    assert [list(one) for one in tried] == [[("Torch.f.1.forward", "output.0")]]
    np.testing.assert_array_equal(tried[0]["Torch.f.1.forward", "output.0"], np.tanh(X))


def test_a_value_is_found_whose_exchange_brings_others_together_though_a_second_mistake_comes_behind_it() -> None:
    counterparts = Counterparts(make_step("reference", np.tanh, np.exp), make_step("candidate", np.sin, np.cos))
    cut, _ = find(counterparts, make_step("candidate", np.tanh, np.cos))
    assert cut is not None and cut.candidate.maker == "Torch.f.1.forward"


def test_there_is_none_where_an_exchange_changes_nothing_for_the_better(counterparts: Counterparts) -> None:
    cut, _ = find(counterparts, make_step("candidate", np.sin))
    assert cut is None


def test_there_is_none_where_what_the_runs_shared_is_lost_for_it() -> None:
    """Each scales at another place."""
    counterparts = Counterparts(
        make_step("reference", lambda x: 2 * np.tanh(x), lambda x: x / 2),
        make_step("candidate", lambda x: 3 * np.tanh(x), lambda x: x / 3),
    )
    cut, tried = find(counterparts, make_step("candidate", lambda x: 2 * np.tanh(x), lambda x: x / 3))
    assert tried and cut is None


@pytest.mark.parametrize(("call", "is_behind"), [("Torch.f.1.forward", True), ("Torch.flip.0.forward", False)])
def test_only_what_leads_to_it_can_be_what_is_wrong(call: str, is_behind: bool, counterparts: Counterparts) -> None:
    cut, _ = find(counterparts, make_step("candidate", np.tanh))
    assert cut is not None
    steps = counterparts.steps
    one = Difference("source", steps["reference"].calls[call], steps["candidate"].calls[call], "")
    assert cut.is_behind(one, steps) is is_behind


def test_there_is_none_where_what_comes_of_it_is_shared() -> None:
    """A sum that is only written otherwise, beside a mistake."""

    def make(name: str, shift: float, scale: float) -> TrueStep:
        step = TrueStep(name, {}, [], Coverage())
        x, w, v = (add_value(step, array, None) for array in (X, W, V))
        shifted = add_call(step, "shift", (x,), np.tanh(X) + shift)
        added = add_call(step, "add", (shifted, w), shifted.array + W)
        shared = add_call(step, "softmax", (added,), np.exp(added.array) / np.exp(added.array).sum())
        wrong = add_call(step, "scale", (v,), V * scale)
        loss = add_call(step, "total", (shared, wrong), np.array([(shared.array @ wrong.array).sum()]))
        loss.is_root = True
        return step

    counterparts = Counterparts(make("reference", 0.0, 1.5), make("candidate", 0.7, 1.6))
    cut, tried = find(counterparts, make("candidate", 0.0, 1.6))
    assert tried and cut is None
