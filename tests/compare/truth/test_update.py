"""An update in many calls and one in a single call are held against each other by what becomes of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.compare.result import Verdict
from tensorprobe.pytorch import PrecisionDebugger
from tests.length import IS_LONG

MANY, ONE, SINGLE = {"foreach": True}, {"fused": True}, {"foreach": False}


class Model(nn.Module):
    """The gradient of its first bias is zero, but for rounding: the norm takes it away."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = self.first.bias.sum().expand(8)
        return self.last(self.norm(x @ self.first.weight.T + same)).square().mean()


class Layers(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


class Attention(nn.Module):
    """The gradient of the keys' bias is zero, but for rounding. `is_joined`: three projections are one."""

    def __init__(self, *, is_joined: bool, is_fused: bool) -> None:
        super().__init__()
        self.is_fused = is_fused
        parts = [nn.Linear(8, 8) for _ in range(3)]
        self.parts = nn.ModuleList([] if is_joined else parts)
        if is_joined:
            self.whole = nn.Linear(8, 24)
            for name in ("weight", "bias"):
                getattr(self.whole, name).data = torch.cat([getattr(part, name).data for part in parts])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = [part(x) for part in self.parts] or self.whole(x).chunk(3, -1)
        if self.is_fused:
            found = F.scaled_dot_product_attention(query[None, None], key[None, None], value[None, None])[0, 0]
        else:
            found = (query @ key.T / 8**0.5).softmax(-1) @ value
        return (found - x).square().sum()


def record(folder: Path, kind: str, options: dict[str, Any], dtype: torch.dtype, steps: int) -> Path:
    torch.manual_seed(0)
    model = Model().to(dtype)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **options)
    return record_steps(folder, model, optimizer.step, torch.randn(3, 6).to(dtype), steps)


def record_steps(
    folder: Path, model: nn.Module, update: Callable[[], object], x: torch.Tensor, steps: int, task: str = "tensor"
) -> Path:
    PrecisionDebugger.reset()
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", task=task)
    for _ in range(steps):
        debugger.start(model)
        model(x).backward()
        update()
        model.zero_grad()
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    return folder


def make_layers() -> Layers:
    torch.manual_seed(0)
    return Layers(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def compare_updates(tmp_path: Path, *makers: Callable[[Layers], Callable[[], object]], steps: int = 2) -> Verdict:
    """Both runs are one model, each with what `makers` make of it: what is done after backward."""
    paths = []
    for name, make_update in zip("rc", makers, strict=True):
        model = make_layers()
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
        paths.append(record_steps(tmp_path / name, model, make_update(model), x, steps))
    return tensorprobe.compare(*paths).verdict


def use_sgd(model: Layers) -> Callable[[], object]:
    return torch.optim.SGD(model.parameters(), lr=0.1).step


def write_by_hand(write: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[Layers], Callable[[], object]]:
    def make_update(model: Layers) -> Callable[[], object]:
        def update() -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    write(parameter, parameter.grad)

        return update

    return make_update


def compare(
    tmp_path: Path,
    kind: str,
    reference: dict[str, Any],
    candidate: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    steps: int = 3,
) -> Verdict:
    paths = [record(tmp_path / name, kind, one, dtype, steps) for name, one in (("r", reference), ("c", candidate))]
    return tensorprobe.compare(*paths).verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "settings", "ways"),
    [
        ("AdamW", {"amsgrad": True}, (MANY, ONE)),
        ("AdamW", {"eps": 1e-30}, (SINGLE, ONE)),  # makes a whole step of the rounding of a gradient that is zero
        ("Rprop", {}, (MANY, SINGLE)),  # goes by the signs of gradients
        ("ASGD", {}, (MANY, SINGLE)),  # holds a copy of each parameter, and its settings in float32
        ("SGD", {"momentum": 0.9, "nesterov": True}, (MANY, SINGLE)),
    ],
    ids=["AdamW", "AdamW without epsilon", "Rprop", "ASGD", "SGD"],
)
@pytest.mark.some(3)
def test_one_optimizer_written_in_two_ways_agrees(
    kind: str, settings: dict[str, Any], ways: tuple[dict[str, Any], ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    steps = 3 if IS_LONG else 2
    verdict = compare(tmp_path, kind, *({**settings, **way} for way in ways), dtype, steps)
    assert verdict.kind == "agree", verdict.headline


@pytest.mark.parametrize(
    ("fault", "step"),
    [({"weight_decay": 0.02}, 0), ({"eps": 1e-7}, 0), ({"betas": (0.9, 0.998)}, 1), ({"maximize": True}, 0)],
    ids=["decay", "epsilon", "beta", "sign"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.some(5)
def test_another_setting_is_found_although_the_optimizer_is_written_in_another_way(
    dtype: torch.dtype, fault: dict[str, Any], step: int, tmp_path: Path
) -> None:
    verdict = compare(tmp_path, "AdamW", MANY, {**ONE, **fault}, dtype, steps=2)
    assert verdict.step == step, verdict.headline
    assert verdict.headline.startswith("The runs first differ in the update of the parameters"), verdict.headline
    assert any("the loss and the gradients are the same" in line for line in verdict.evidence)
    assert any("was called with beta1=0.9" in line and "lr=0.001" in line for line in verdict.evidence)


def test_another_setting_of_the_same_calls_is_named_as_an_argument(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "AdamW", ONE, {**ONE, "eps": 1e-7}, steps=1)
    assert "_fused_adamw_.0.forward: called with eps=1e-07 where the reference had 1e-08" in verdict.headline


def test_an_agreement_counts_the_updates(tmp_path: Path) -> None:
    verdict = compare(tmp_path, "SGD", MANY, {"foreach": False}, steps=1)
    assert "the loss, the gradients of 6 parameters and their updates have the same value" in verdict.headline


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad"])
@pytest.mark.parametrize("is_joined", [False, True], ids=["three projections", "one"])
@pytest.mark.some(3)
def test_a_bias_without_a_gradient_raises_no_alarm(is_joined: bool, kind: str, tmp_path: Path) -> None:
    """An optimizer that divides by the size of a gradient makes a whole step of its rounding."""
    paths = []
    for name, options in (
        ("r", {"is_joined": False, "is_fused": False}),
        ("c", {"is_joined": is_joined, "is_fused": True}),
    ):
        torch.manual_seed(0)
        model = Attention(**options)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3)
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        paths.append(record_steps(tmp_path / name, model, optimizer.step, x, 2))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == "agree", verdict.headline


@pytest.mark.parametrize("beta", [pytest.param(0.999, marks=pytest.mark.long), 0.95])
def test_what_an_optimizer_keeps_of_a_gradient_that_is_zero_hides_no_other_update(beta: float, tmp_path: Path) -> None:
    """Two ways to compute one attention leave other roundings in the state of the keys' bias."""
    paths = []
    for name, is_fused, options in (("r", False, MANY), ("c", True, {**ONE, "betas": (0.9, beta)})):
        torch.manual_seed(0)
        model = Attention(is_joined=False, is_fused=is_fused)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        paths.append(record_steps(tmp_path / name, model, optimizer.step, x, 3))
    verdict = tensorprobe.compare(*paths).verdict
    if beta == 0.999:
        assert verdict.kind == "agree", verdict.headline
    else:
        assert (verdict.kind, verdict.step) == ("source", 1), verdict.headline
        assert any("beta2=0.95" in line for line in verdict.evidence)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_with_statistics_only_the_rounding_of_a_gradient_that_is_zero_is_no_other_update(
    momentum: float, tmp_path: Path
) -> None:
    paths = []
    for name, is_fused, kept in (("r", False, 0.9), ("c", True, momentum)):
        torch.manual_seed(0)
        model = Attention(is_joined=False, is_fused=is_fused)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=kept, foreach=False)
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        paths.append(record_steps(tmp_path / name, model, optimizer.step, x, 3, task="statistics"))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == ("agree" if momentum == 0.9 else "framework"), verdict


def test_updates_that_are_not_made_are_found_in_bfloat16_too(tmp_path: Path) -> None:
    paths = []
    for name in ("r", "c"):
        torch.manual_seed(0)
        model = Model().bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        update = optimizer.step if name == "r" else int
        paths.append(record_steps(tmp_path / name, model, update, torch.randn(3, 6).bfloat16(), 2))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == "drift" and verdict.step == 1, verdict.headline
    assert "others were updated differently" in verdict.headline


def test_parameters_that_rounding_moved_before_the_recording_are_no_other_update(tmp_path: Path) -> None:
    paths = []
    for name, way, parts in (("r", MANY, 1), ("c", ONE, 2)):
        torch.manual_seed(0)
        model, x = Layers(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(6, 6)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **way)
        for _ in range(3):
            for part in x.chunk(parts):
                (model(part) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        paths.append(record_steps(tmp_path / name, model, optimizer.step, x, 1))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == "unequal start", verdict.headline
    assert "update" not in verdict.headline


def test_one_number_that_is_one_rounding_off_is_told_as_the_start(tmp_path: Path) -> None:
    """Too little to make it another parameter, and enough to make another gradient of it."""
    paths = []
    for name in ("r", "c"):
        torch.manual_seed(0)
        model, x = Layers(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(6, 6)
        weight = model.get_parameter("0.weight").data
        place = weight.abs().flatten().argmin()
        weight.flatten()[place] = 0.011
        if name == "c":
            weight.flatten()[place] = torch.nextafter(torch.tensor(0.011), torch.tensor(1.0))
        paths.append(record_steps(tmp_path / name, model, int, x, 1))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == "unequal start" and "0.weight" in verdict.headline, verdict.headline


@pytest.mark.parametrize("rate", [0.1, 0.1001])
@pytest.mark.parametrize("way", ["data", "copy", "in place"])
@pytest.mark.some(3)
def test_an_update_by_hand_is_held_against_an_optimizer(way: str, rate: float, tmp_path: Path) -> None:
    writes: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
        "data": lambda parameter, gradient: parameter.data.sub_(rate * gradient),
        "copy": lambda parameter, gradient: parameter.copy_(parameter - rate * gradient),
        "in place": lambda parameter, gradient: parameter.add_(gradient, alpha=-rate),
    }
    verdict = compare_updates(tmp_path, use_sgd, write_by_hand(writes[way]))
    if rate == 0.1:
        assert verdict.kind == "agree", verdict.headline
    else:
        assert verdict.step == 0 and "0.1001" in verdict.headline, verdict.headline


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_parameter_that_one_optimizer_is_not_given_is_named_at_once(side: str, tmp_path: Path) -> None:
    def leave_one_out(model: Layers) -> Callable[[], object]:
        return torch.optim.SGD(list(model.parameters())[:-1], lr=0.1).step

    makers = (leave_one_out, use_sgd) if side == "reference" else (use_sgd, leave_one_out)
    verdict = compare_updates(tmp_path, *makers, steps=1)
    updating = "candidate" if side == "reference" else "reference"
    assert f"only the {updating} updates 2.bias" in verdict.headline


def test_a_mean_of_the_parameters_that_is_written_in_two_ways_agrees_at_later_steps(tmp_path: Path) -> None:
    def use_mean(mix: Callable[[list[torch.Tensor], list[torch.Tensor]], object]) -> Any:
        def make_update(model: Layers) -> Callable[[], object]:
            step, mean = use_sgd(model), [parameter.detach().clone() for parameter in model.parameters()]

            def update() -> None:
                step()
                with torch.no_grad():
                    mix(mean, list(model.parameters()))

            return update

        return make_update

    def mix_one_by_one(mean: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
        for one, parameter in zip(mean, parameters, strict=True):
            one.mul_(0.9).add_(parameter, alpha=0.1)

    at_once = use_mean(lambda mean, parameters: torch._foreach_lerp_(mean, parameters, 0.1))
    verdict = compare_updates(tmp_path, at_once, use_mean(mix_one_by_one), steps=3)
    assert verdict.kind == "agree", verdict.headline


def test_gradients_that_were_not_cleared_are_told_at_the_step_that_takes_them(tmp_path: Path) -> None:
    def keep_gradients(model: Layers) -> Callable[[], object]:
        model.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        return use_sgd(model)

    verdict = compare_updates(tmp_path, use_sgd, keep_gradients, steps=3)
    assert verdict.step == 1
    assert "is not the gradient that this step of the candidate computed: it was cleared too late" in verdict.headline


def test_joined_parameters_are_clipped_as_their_parts_are(tmp_path: Path) -> None:
    paths = []
    for name, is_joined in (("r", False), ("c", True)):
        torch.manual_seed(0)
        model = Attention(is_joined=is_joined, is_fused=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def update(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
        paths.append(record_steps(tmp_path / name, model, update, x, 2))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == "agree", verdict.headline


@pytest.mark.parametrize("rate", [1e-3, 1.01e-3])
def test_two_updates_in_one_recorded_step_agree_in_bfloat16_too(rate: float, tmp_path: Path) -> None:
    """The second loss is computed from what the first update made."""
    paths = []
    for name, way, lr in (("r", SINGLE, 1e-3), ("c", ONE, rate)):
        model = make_layers().bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, **way)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).bfloat16()

        def update_twice(
            model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer, x: torch.Tensor = x
        ) -> None:
            optimizer.step()
            optimizer.zero_grad()
            model(x.flip(0) * 2).backward()
            optimizer.step()

        paths.append(record_steps(tmp_path / name, model, update_twice, x, 3))
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == ("agree" if rate == 1e-3 else "entered"), verdict.headline
    assert rate == 1e-3 or "_fused_adamw_.0" in verdict.headline


def test_parameters_that_are_changed_unseen_after_the_same_update_are_told_so(tmp_path: Path) -> None:
    def take_back(model: Layers) -> Callable[[], object]:
        step, before = use_sgd(model), model[0].weight.detach().clone()

        def update() -> None:
            step()
            model[0].weight.detach().numpy()[...] = before.numpy()

        return update

    verdict = compare_updates(tmp_path, use_sgd, take_back)
    assert "The runs diverge between the steps: 0.weight was updated differently" in verdict.headline
    assert any("both runs make the same update in the previous step" in line for line in verdict.evidence)


def record_halves(folder: Path, *, is_split: bool, clears: bool = False) -> Path:
    """A batch at once, or in two halves whose gradients are added up. `clears`: between them, where it should not."""
    model = make_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    with tensorprobe.capture(model, folder, level="L1", task="tensor"):
        for part in x.chunk(2) if is_split else [x]:
            if clears:
                optimizer.zero_grad()
            (model(part) / (2 if is_split else 1)).backward()
        optimizer.step()
    return folder


def test_a_gradient_that_is_cleared_before_anybody_took_it_is_said_to_be_lost(tmp_path: Path) -> None:
    reference = record_halves(tmp_path / "r", is_split=False)
    assert tensorprobe.compare(reference, record_halves(tmp_path / "c", is_split=True)).verdict.kind == "agree"
    cleared = tensorprobe.compare(reference, record_halves(tmp_path / "f", is_split=True, clears=True)).verdict
    told = "the gradient of 0.weight and 3 others, left by the previous backward pass, was cleared before it was used"
    assert told in cleared.headline, cleared


def test_gradients_that_are_cleared_after_they_were_used_are_no_loss(tmp_path: Path) -> None:
    """Two updates in one recorded step, of which the first is made of the first pass."""

    def record_twice(folder: Path, *, scales: bool) -> Path:
        model = make_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
        with tensorprobe.capture(model, folder, level="L1", task="tensor"):
            for part in x.chunk(2):
                (model(part) / 2 if scales else model(part) * 0.5).backward()
                optimizer.step()
                optimizer.zero_grad()
        return folder

    paths = [record_twice(tmp_path / name, scales=scales) for name, scales in (("r", False), ("c", True))]
    assert tensorprobe.compare(*paths).verdict.kind == "agree"


def record_rivals(folder: Path, *, is_frozen: bool = False, forgets: bool = False) -> Path:
    """A judge is trained first, then the one that is judged, through the judge. `forgets`: the gradients that came to
    the judge on that way, which its next update then takes."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 6), make_layers()
    rivals = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (judge, maker)]
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    with tensorprobe.capture(nn.ModuleList([maker, judge]), folder, level="L1", task="tensor"):
        for _ in range(2):
            if not forgets:
                rivals[0].zero_grad()
            judge(maker(x).detach()).backward()
            rivals[0].step()
            rivals[1].zero_grad()
            judge.requires_grad_(not is_frozen)
            (-judge(maker(x))).backward()
            judge.requires_grad_(True)
            rivals[1].step()
    return folder


def test_gradients_that_came_along_and_that_nobody_takes_are_no_difference(tmp_path: Path) -> None:
    verdict = tensorprobe.compare(record_rivals(tmp_path / "r"), record_rivals(tmp_path / "c", is_frozen=True)).verdict
    assert verdict.kind == "agree", verdict


def test_gradients_that_came_along_and_are_taken_by_the_next_update_are_one(tmp_path: Path) -> None:
    verdict = tensorprobe.compare(record_rivals(tmp_path / "r"), record_rivals(tmp_path / "c", forgets=True)).verdict
    assert verdict.kind != "agree"


def test_numbers_that_blow_up_when_parameters_are_moved_prove_nothing_there(tmp_path: Path) -> None:
    for name, is_squared in (("r", False), ("c", True)):
        layer = nn.Linear(4, 4)
        nn.init.constant_(layer.weight, 0.8)
        with tensorprobe.capture(layer, tmp_path / name, level="L1", task="tensor"):
            grown = torch.exp(30 * layer.weight).square() if is_squared else torch.exp(60 * layer.weight)
            (1e-20 * grown).mean().backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == "agree" and "also for other parameter values" not in verdict.headline, verdict


@pytest.mark.parametrize("fault", [0.0, 0.01])
def test_wide_layers_without_norms_can_be_moved(fault: float, tmp_path: Path) -> None:
    """Where the mean of a weight moves, gradients grow with each layer, and a softmax is saturated."""
    for name, is_fused in (("r", False), ("c", True)):
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.ModuleList(nn.Linear(64, 64) for _ in range(3)) for _ in range(4))
        x = torch.randn(16, 64)
        with tensorprobe.capture(layers, tmp_path / name, level="L1", task="tensor"):
            for layer in layers:
                query, key, value = (part(x) for part in layer)
                scale = (1 + fault if is_fused else 1) / 8
                scores = query @ key.T * scale
                mixed = F.scaled_dot_product_attention(query[None], key[None], value[None], scale=scale)[0]
                x = x + (mixed if is_fused else scores.softmax(-1) @ value)
            x.square().mean().backward()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == "agree" if not fault else "1.01" in verdict.headline, verdict
    assert ("also for other parameter values" in verdict.headline) is (fault == 0), verdict


@pytest.mark.parametrize("is_inside", [False, True])
def test_of_an_update_that_is_written_out_the_line_is_named_though_the_other_run_makes_one_call(
    is_inside: bool, tmp_path: Path
) -> None:
    def write_adamw(model: Layers) -> Callable[[], object]:
        state = {one: [torch.zeros_like(one), torch.zeros_like(one)] for one in model.parameters()}
        steps = count(1)

        def update() -> None:
            step = next(steps)
            with torch.no_grad():
                for weight, (mean, square) in state.items():
                    assert weight.grad is not None
                    mean.mul_(0.9).add_(weight.grad, alpha=0.1)
                    square.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
                    weight.mul_(1 - 1e-3 * 0.01)
                    corrected = square / (1 - 0.999**step)
                    root = (corrected + 1e-3).sqrt() if is_inside else corrected.sqrt() + 1e-3
                    weight.addcdiv_(mean, root, value=-1e-3 / (1 - 0.9**step))

        return update

    def use_fused(model: Layers) -> Callable[[], object]:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3, fused=True).step

    verdict = compare_updates(tmp_path, use_fused, write_adamw)
    if not is_inside:
        assert verdict.kind == "agree", verdict.headline
        return
    assert verdict.headline.startswith("The runs first differ in the update of the parameters"), verdict.headline
    assert verdict.call is not None and verdict.call.candidate[-1].op in ("__truediv__", "div", "add", "sqrt")


def test_a_mean_of_updated_parameters_hides_no_wrong_update(tmp_path: Path) -> None:
    def make(rate: float) -> Callable[[Layers], Callable[[], object]]:
        def make_update(model: Layers) -> Callable[[], object]:
            means = [one.detach().clone() for one in model.parameters()]
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)

            def update() -> None:
                optimizer.step()
                for mean, one in zip(means, model.parameters(), strict=True):
                    mean.lerp_(one.detach(), 0.2)

            return update

        return make_update

    verdict = compare_updates(tmp_path, make(0.1), make(0.11))
    assert "lerp" not in verdict.headline, verdict.headline
    assert any("4 of 4 parameters are updated differently" in line for line in verdict.evidence), verdict.evidence


def test_states_that_are_zero_to_begin_with_are_not_said_to_be_computed_twice(tmp_path: Path) -> None:
    def make(decay: float, way: dict[str, Any]) -> Callable[[Layers], Callable[[], object]]:
        def make_update(model: Layers) -> Callable[[], object]:
            groups = [
                {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": 0.1},
                {"params": [one for one in model.parameters() if one.ndim == 1], "weight_decay": decay},
            ]
            return torch.optim.AdamW(groups, lr=1e-2, **way).step

        return make_update

    verdict = compare_updates(tmp_path, make(0.0, ONE), make(0.1, SINGLE), steps=1)
    assert verdict.call is not None and verdict.call.candidate[-1].op == "mul_", verdict.headline
    assert "it repeats what" not in verdict.headline


def test_a_mean_that_is_wrong_by_itself_is_no_wrong_update(tmp_path: Path) -> None:
    def make(count: int) -> Callable[[Layers], Callable[[], object]]:
        def make_update(model: Layers) -> Callable[[], object]:
            means = [torch.zeros_like(one) for one in model.parameters()]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def update() -> None:
                optimizer.step()
                with torch.no_grad():
                    for mean, one in zip(means, model.parameters(), strict=True):
                        mean += (one - mean) / count

            return update

        return make_update

    verdict = compare_updates(tmp_path, make(2), make(3), steps=1)
    assert verdict.kind != "agree"
    assert "in the update of the parameters" not in verdict.headline
