"""Off means absent: between stop and start, and for what is filtered out, nothing of the tool is anywhere."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import pytest
from mindspore import Tensor, nn, ops
from mindspore.ops import Primitive

from tensorprobe.capture.mindspore.compiled import _JitExecutor
from tensorprobe.mindspore import PrecisionDebugger
from tests.mindspore.program import DUMP, Net, dump_of, make_net, tensor, train_step

relu_of_this_file = ops.relu  # as `from mindspore.ops import relu` would have it


def start(**options: Any) -> PrecisionDebugger:
    return PrecisionDebugger(dump_path=DUMP, **options)


def attributes() -> dict[tuple[str, str], Any]:
    """Everything that a tool could have put something in the place of."""
    owners: list[Any] = [module for name, module in list(sys.modules.items()) if is_looked_at(name, module)]
    for kind in (Tensor, _JitExecutor, nn.Cell, Primitive):
        owners += [kind, *subclasses(kind)]
    return {
        (str(owner), name): value
        for owner in owners
        for name, value in list(vars(owner).items())
        if not isinstance(value, int)  # MindSpore counts its cells and its hooks
    }


def is_looked_at(name: str, module: Any) -> bool:
    return isinstance(module, types.ModuleType) and (name.startswith("mindspore") or name == __name__)


def subclasses(kind: type) -> list[type]:
    found = list(kind.__subclasses__())
    return found + [below for child in found for below in subclasses(child)]


def changed(before: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    after = attributes()
    return [key for key in before.keys() & after.keys() if after[key] is not before[key]]


def hooks_and_attributes(model: nn.Cell) -> list[Any]:
    """What the user's own objects hold."""
    cells = [cell for _, cell in model.cells_and_names()]
    parameters = list(model.get_parameters())
    primitives = [primitive for cell in cells for primitive in cell._primitives.values()]
    held = [
        {name: dict(value) if isinstance(value, dict) else id(value) for name, value in vars(item).items()}
        for item in [*cells, *parameters, *primitives]
    ]
    return [*held, [parameter.hooks() for parameter in parameters]]


def make_used_net() -> tuple[Net, Tensor]:
    """Cells keep something of their own from their first call."""
    model, x = make_net()
    train_step(model, x)
    return model, x


def is_installed() -> bool:
    return "tensorprobe" in nn.Cell.__call__.__code__.co_filename


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_between_stop_and_start_nothing_is_installed(level: str) -> None:
    model, x = make_used_net()
    before, objects, given = attributes(), hooks_and_attributes(model), dict(vars(x))
    debugger = start(level=level)
    assert changed(before) == []
    debugger.start(model)
    assert is_installed()
    train_step(model, x)
    debugger.stop()
    assert changed(before) == []
    assert hooks_and_attributes(model) == objects
    assert vars(x) == given
    debugger.step()
    assert changed(before) == []


def test_the_check_of_what_is_installed_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    before = attributes()
    monkeypatch.setattr(ops, "relu", lambda *_: None)
    monkeypatch.setattr(nn.Cell, "__call__", lambda *_: None)
    assert sorted(name for _, name in changed(before)) == ["__call__", "relu"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_in_the_window_early_imported_names_are_replaced_and_put_back(level: str) -> None:
    model, _ = make_used_net()
    before = attributes()
    debugger = start(level=level)
    debugger.start(model)
    assert (str(sys.modules[__name__]), "relu_of_this_file") in changed(before)
    debugger.stop()
    assert changed(before) == []


def test_for_filtered_steps_nothing_is_installed() -> None:
    model, _ = make_used_net()
    before = attributes()
    debugger = start(level="mix", step=[1])
    debugger.start(model)
    assert changed(before) == [] and not is_installed()
    debugger.step()
    debugger.start(model)
    assert is_installed()


def test_for_filtered_ranks_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "4")
    Path("config.json").write_text('{"rank": [0], "level": "mix", "dump_path": "dump"}')
    model, _ = make_used_net()
    before = attributes()
    PrecisionDebugger("config.json").start(model)
    assert changed(before) == [] and not DUMP.exists()


def test_level_debug_installs_nothing() -> None:
    model, x = make_used_net()
    before = attributes()
    debugger = start(level="debug")
    debugger.start(model)
    debugger.save(model(x), "y")
    assert changed(before) == []


def raise_in(model: nn.Cell, x: Tensor) -> None:
    model(x[:, :, :1])  # too small for the kernel


def interrupt(model: nn.Cell, x: Tensor) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failure", [raise_in, interrupt])
def test_an_exception_in_the_window_leaves_nothing_installed_after_stop(
    failure: Callable[[nn.Cell, Tensor], None],
) -> None:
    model, x = make_used_net()
    before, objects = attributes(), hooks_and_attributes(model)
    debugger = start(level="mix")
    debugger.start(model)
    with pytest.raises((ValueError, KeyboardInterrupt)):
        failure(model, x)
    debugger.stop()
    after = hooks_and_attributes(model)
    assert changed(before) == [] and after[:-1] == objects[:-1]
    assert after == objects or failure is raise_in  # see below: MindSpore does not remove these hooks


def test_hooks_on_the_recorded_graph_are_inert_after_step() -> None:
    debugger = start(level="mix", task="tensor")
    model, x = make_used_net()
    objects = hooks_and_attributes(model)
    recorded: list[bytes] = []

    def compute(image: Tensor) -> Tensor:
        debugger.start(model)
        loss = model(image).square().sum()
        debugger.stop()
        debugger.step()
        recorded.append((DUMP / "step0" / "rank" / "dump.json").read_bytes())
        assert hooks_and_attributes(model) == objects
        return loss

    gradients = mindspore.grad(compute, None, model.trainable_params())(x)
    assert [(DUMP / "step0" / "rank" / "dump.json").read_bytes()] == recorded
    assert all(gradient is not None for gradient in gradients)


def test_hooks_of_parameters_stay_for_the_backward_after_stop_and_are_gone_with_it() -> None:
    debugger = start(level="mix")
    model, x = make_used_net()
    objects = hooks_and_attributes(model)

    def compute(image: Tensor) -> Tensor:
        debugger.start(model)
        loss = model(image).square().sum()
        debugger.stop()
        return loss

    mindspore.grad(compute, None, model.trainable_params())(x)
    assert hooks_and_attributes(model) == objects


def test_hooks_of_parameters_of_a_window_without_a_backward_are_gone_after_stop() -> None:
    debugger = start(level="mix")
    model, x = make_used_net()
    objects = hooks_and_attributes(model)
    debugger.start(model)
    model(x)
    debugger.stop()
    assert hooks_and_attributes(model) == objects


def test_hooks_of_parameters_are_gone_when_a_window_is_closed_in_which_nothing_happened() -> None:
    debugger = start(level="mix")
    model, x = make_used_net()
    objects = hooks_and_attributes(model)

    def compute(image: Tensor) -> Tensor:
        debugger.start(model)
        PrecisionDebugger.reset()
        assert hooks_and_attributes(model) == objects
        return model(image).square().sum()

    mindspore.grad(compute, None, model.trainable_params())(x)


def test_hooks_of_parameters_that_mindspore_cannot_remove_do_nothing() -> None:
    debugger = start(level="L0", task="tensor")
    model, x = make_used_net()
    debugger.start(model)
    with pytest.raises(ValueError):
        train_step(model, x[:, :, :1])  # after an operation of its own has failed, MindSpore forgets all hooks
    debugger.stop()
    train_step(model, x)
    assert "Cell.fc.Dense.parameters_grad" not in dump_of().records
    debugger.start(model)
    train_step(model, x)
    debugger.step()
    assert "Cell.fc.Dense.parameters_grad" in dump_of().records and dump_of().coverage["failed"] == 0
    recorded = (DUMP / "step0" / "rank" / "dump.json").read_bytes()
    train_step(model, x)
    assert (DUMP / "step0" / "rank" / "dump.json").read_bytes() == recorded


def test_a_users_own_hooks_stay_and_run() -> None:
    model, x = make_used_net()
    called: list[str] = []
    model.fc.register_forward_hook(lambda *_: called.append("forward"))
    model.fc.weight.register_hook(lambda _: called.append("gradient"))
    debugger = start(level="mix")
    debugger.start(model)
    train_step(model, x)
    debugger.step()
    train_step(model, x)
    assert called == ["forward", "gradient"] * 2


def test_what_somebody_patched_in_the_window_stays_after_it() -> None:
    original = ops.relu
    debugger = start()
    debugger.start()
    ours = ops.relu
    ops.relu = lambda x: ours(x)
    theirs = ops.relu
    try:
        debugger.stop()
        assert ops.relu is theirs
        assert ops.relu(tensor([-1.0, 2.0])).asnumpy().tolist() == [0.0, 2.0]
    finally:
        ops.relu = original
