"""Activation checkpointing of both kinds: recomputed calls are seen, marked and compared with the forward; counters do
not move; the backward is as complete as without it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from tensorprobe.capture.coverage import Coverage
from tests.capture.torch.dump import DumpOnDisk, only_step
from tests.capture.torch.training import open_session

LEVELS = ("L0", "L1", "mix")
KINDS = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
Wrap = Callable[..., torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = torch.sigmoid(x.mean())
        return x + self.down(F.dropout(torch.tanh(self.up(x)), 0.5)) * scale


class Net(nn.Module):
    def __init__(self, wrap: Wrap) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList([Block(), Block()])
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in (*self.blocks, self.blocks[0]):  # one of them twice
            x = self.wrap(block, x)
        return x.square().sum()


def plain(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def checkpointed(reentrant: bool) -> Wrap:
    return lambda function, *args: checkpoint(function, *args, use_reentrant=reentrant)


def train(
    wrap: Wrap, tmp_path: Path | None = None, level: str = "mix", stops_early: bool = False
) -> tuple[list[torch.Tensor], DumpOnDisk | None, Coverage]:
    torch.manual_seed(3)
    model, x = Net(wrap), torch.randn(5, 4, requires_grad=True)
    session = open_session(tmp_path, level=level, task="tensor") if tmp_path is not None else None
    coverage = Coverage()
    if session is not None:
        session.start(model)
    loss = model(x)
    if session is not None and stops_early:
        session.stop()
    loss.backward()
    if session is not None:
        session.stop()
        coverage = session.recorder.coverage
        assert coverage.failed == 0
        session.close()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    observed = [loss.detach(), x.grad, torch.get_rng_state(), *gradients]
    return observed, only_step(tmp_path) if tmp_path is not None else None, coverage  # type: ignore[return-value]


def is_backward(name: str) -> bool:
    return "backward" in name or "parameters_grad" in name


@KINDS
@pytest.mark.parametrize("stops_early", [False, True], ids=["backward inside", "backward after stop"])
@pytest.mark.parametrize("level", LEVELS)
def test_training_is_bit_identical_and_records_are_those_without_checkpointing(
    tmp_path: Path, level: str, reentrant: bool, stops_early: bool
) -> None:
    expected, _, _ = train(checkpointed(reentrant))
    observed, dump, coverage = train(checkpointed(reentrant), tmp_path / "c", level, stops_early)
    assert all(torch.equal(first, second) for first, second in zip(expected, observed, strict=True))
    _, reference, _ = train(plain, tmp_path / "p", level)
    assert dump is not None and reference is not None
    names = {name for name in dump.records if "recompute" not in name}
    assert names == set(reference.records)
    assert coverage.recomputed == sum("recompute" in name for name in dump.records) > 0
    assert coverage.recomputed_differently == 0
    for name in filter(is_backward, names):  # every gradient that is there without it, with the same value
        expected_leaves, leaves = slots(reference, name), slots(dump, name)
        assert leaves.keys() == expected_leaves.keys(), name
        for slot, tensor in expected_leaves.items():
            torch.testing.assert_close(leaves[slot], tensor, msg=f"{name} {slot}")


def slots(dump: DumpOnDisk, name: str) -> dict[str, torch.Tensor]:
    """The gradients of a record, by place. What hangs on the whole graph is the same; a leaf of a checkpoint's inner
    graph has no gradient for a number that is no tensor."""
    found: dict[str, torch.Tensor] = {}

    def walk(tree: Any, path: str) -> None:
        if isinstance(tree, torch.Tensor):
            found[path] = tree
        elif isinstance(tree, (list, dict)):
            for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
                walk(item, f"{path}.{key}")

    fields = dump.records[name]
    walk({key: dump.tensors(value) for key, value in fields.items() if isinstance(value, (list, dict))}, "")
    return found


@KINDS
def test_recomputed_calls_have_the_number_of_their_forward_and_its_values(tmp_path: Path, reentrant: bool) -> None:
    _, dump, _ = train(checkpointed(reentrant), tmp_path)
    assert dump is not None
    recomputed = {name: fields for name, fields in dump.records.items() if "recompute" in name}
    assert "Module.blocks.0.Block.recompute.1" in recomputed and "Functional.dropout.2.recompute" in recomputed
    for name, fields in recomputed.items():
        forward = dump.records[name.replace("recompute", "forward")]
        assert fields["recomputed"] is True
        assert fields["differs_from_forward"] == (None if "note" in fields else [])  # it stopped before its result
        assert fields["module_path"] == forward["module_path"]
        for role in ("input_args", "output"):
            if role in fields:
                assert torch.utils._pytree.tree_all(
                    lambda pair: pair,
                    torch.utils._pytree.tree_map(
                        lambda first, second: not isinstance(first, torch.Tensor) or torch.equal(first, second),
                        dump.tensors(fields[role]),
                        dump.tensors(forward[role]),
                    ),
                )


@KINDS
def test_a_recomputed_call_lies_in_the_recomputed_module_and_that_in_the_backward(
    tmp_path: Path, reentrant: bool
) -> None:
    _, dump, _ = train(checkpointed(reentrant), tmp_path)
    assert dump is not None
    assert dump.parents["Torch.tanh.0.recompute"] == "Module.blocks.0.Block.recompute.0"
    assert dump.parents["Module.blocks.0.up.Linear.recompute.0"] == "Module.blocks.0.Block.recompute.0"
    assert dump.parents["Module.blocks.0.Block.recompute.0"] == "Module.Net.backward.0"


def test_a_call_in_which_the_recomputation_stops_says_so_and_has_not_failed(tmp_path: Path) -> None:
    _, dump, coverage = train(checkpointed(False), tmp_path)
    assert dump is not None and coverage.failed == 0
    notes = {name: fields.get("note") for name, fields in dump.records.items() if "recompute" in name}
    assert sum(note is not None and note.startswith("stopped early") for note in notes.values()) > 0
    assert not any("failed" in fields for fields in dump.records.values())
    with set_checkpoint_early_stop(False):
        _, dump, _ = train(checkpointed(False), tmp_path / "whole")
    assert dump is not None
    assert not any("note" in fields for name, fields in dump.records.items() if "recompute" in name)


@KINDS
def test_a_recomputation_that_gives_something_else_is_named_and_counted(
    tmp_path: Path, reentrant: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tensorprobe")

    def wrap(function: Any, *args: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=reentrant, preserve_rng_state=False)

    _, dump, coverage = train(wrap, tmp_path)
    assert dump is not None and coverage.recomputed_differently > 0
    assert dump.records["Functional.dropout.0.recompute"]["differs_from_forward"] == ["output.0"]
    assert dump.records["Functional.linear.1.recompute"]["differs_from_forward"] == []
    said = [record.getMessage() for record in caplog.records if "recomputed in the backward" in record.getMessage()]
    assert len(said) == 1 and "Functional.dropout.2.forward" in said[0] and "output.0" in said[0]


@KINDS
def test_nested_checkpoints_repeat_the_calls_of_the_forward(tmp_path: Path, reentrant: bool) -> None:
    wrap = checkpointed(reentrant)

    def outer(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return wrap(lambda value: torch.cos(wrap(block, torch.sin(value))), x)

    expected, _, _ = train(outer)
    observed, dump, coverage = train(outer, tmp_path)
    assert all(torch.equal(first, second) for first, second in zip(expected, observed, strict=True))
    assert dump is not None and coverage.recomputed_differently == 0
    assert "recomputed call that the forward did not make" not in coverage.unseen
    _, reference, _ = train(
        lambda block, x: plain(lambda value: torch.cos(block(torch.sin(value))), x), tmp_path / "plain"
    )
    assert reference is not None
    assert {name for name in dump.records if "recompute" not in name} == set(reference.records)


def test_checkpoint_sequential_is_seen(tmp_path: Path) -> None:
    model, x = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), torch.ones(1, 3, requires_grad=True)
    session = open_session(tmp_path, level="L0")
    session.start(model)
    checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
    session.close()
    names = only_step(tmp_path).records
    assert "Module.0.Linear.recompute.0" in names and "Module.1.Linear.recompute.0" in names
    assert not any(name.startswith("Module.3.Linear.recompute") for name in names)  # the last part is not repeated
    assert all(f"Module.{number}.Linear.backward.0" in names for number in range(4))


class ByHand(torch.autograd.Function):
    """Checkpointing as training frameworks write it themselves."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.function(x)
        torch.autograd.backward(output, gradient * 1)
        assert x.grad is not None
        return None, x.grad


def test_checkpointing_written_by_hand_is_recognised(tmp_path: Path) -> None:
    def wrap(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return ByHand.apply(lambda value: torch.tanh(torch.sin(value)), block(x))

    expected, _, _ = train(wrap)
    observed, dump, coverage = train(wrap, tmp_path)
    assert all(torch.equal(first, second) for first, second in zip(expected, observed, strict=True))
    assert dump is not None and coverage.recomputed_differently == 0
    for number in range(3):
        assert dump.records[f"Torch.sin.{number}.recompute"]["differs_from_forward"] == []
        assert f"Torch.sin.{number}.backward" in dump.records
    assert "Torch.sin.3.forward" not in dump.records
    assert coverage.unseen == {"call inside backward": 6}  # detach and the product, which repeat nothing


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("the user's own")


@pytest.mark.parametrize("stops_early", [False, True], ids=["backward inside", "backward after stop"])
def test_a_backward_that_raises_in_a_function_leaves_nothing_open(tmp_path: Path, stops_early: bool) -> None:
    model, original = nn.Linear(3, 3), nn.Module.__call__
    session = open_session(tmp_path, level="mix")
    session.start(model)
    loss = Refusing.apply(model(torch.ones(1, 3))).sum()
    if stops_early:
        session.stop()
    with pytest.raises(ValueError, match="the user's own"):
        loss.backward()
    session.stop()
    assert nn.Module.__call__ is original and torch._C._len_torch_function_stack() == 0
    session.step()
    session.start(model)
    model(torch.ones(1, 3)).sum().backward()
    session.stop()
    assert session.recorder.coverage.unseen == {} and session.recorder.coverage.recomputed == 0
    session.close()
    assert "Module.Linear.forward.0" in only_step(tmp_path, 1).records


@pytest.mark.parametrize("level", LEVELS)
def test_a_late_backward_through_nested_reentrant_checkpoints_and_functions_is_complete(
    tmp_path: Path, level: str
) -> None:
    inner, outer = checkpointed(True), checkpointed(True)

    def wrap(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return outer(lambda value: ByHand.apply(torch.cos, inner(block, torch.sin(value))), x)

    _, inside, coverage = train(wrap, tmp_path / "inside", level)
    _, late, late_coverage = train(wrap, tmp_path / "late", level, stops_early=True)
    assert inside is not None and late is not None
    assert set(late.records) == set(inside.records)
    assert late_coverage.recomputed == coverage.recomputed


def test_buffers_that_go_on_are_marked_and_no_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """BatchNorm counts its batches once more in a recomputation: gradients are exact all the same."""
    norm, x = nn.BatchNorm1d(4), torch.randn(6, 4, requires_grad=True)
    session = open_session(tmp_path, level="L1")
    session.start(norm)
    with set_checkpoint_early_stop(False):
        checkpoint(norm, x, use_reentrant=False).square().sum().backward()
    session.stop()
    assert session.recorder.coverage.recomputed_differently == 0 and "computed something else" not in caplog.text
    session.close()
    assert only_step(tmp_path).records["Functional.batch_norm.0.recompute"]["differs_from_forward"] == [
        "input.1",
        "input.2",
    ]


@KINDS
def test_after_step_a_recomputation_is_not_recorded_any_more(tmp_path: Path, reentrant: bool) -> None:
    model, x = Net(checkpointed(reentrant)), torch.randn(2, 4, requires_grad=True)
    session = open_session(tmp_path, level="mix")
    session.start(model)
    loss = model(x)
    session.stop()
    session.step()
    loss.backward()
    session.close()
    assert not any("recompute" in name for name in only_step(tmp_path).records)


def test_a_second_pass_over_a_retained_graph_recomputes_again_and_is_counted(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    session = open_session(tmp_path, level="L1")
    session.start()
    loss = checkpoint(torch.sin, x, use_reentrant=False).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    session.stop()
    coverage = session.recorder.coverage
    session.close()
    assert coverage.recomputed == 2 and coverage.failed == 0
    assert list(only_step(tmp_path).records) == [
        "Torch.sin.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Torch.sin.0.recompute",
        "Torch.sin.0.backward",
    ]
