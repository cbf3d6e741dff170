"""The program's own modes and tensor classes see what they see without a capture: the same calls, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import tensorprobe
from tensorprobe.capture import save_now
from tensorprobe.migrator import api_dump_init, api_dump_start, api_dump_stop
from tensorprobe.pytorch import save, save_grad, seed_all
from tests.capture.torch.dump import only_step
from tests.migrator.api_dump_run import forget_session

LEVELS = ("L0", "L1", "mix", "debug")
TASKS = ("statistics", "tensor", "structure")
WAYS: dict[str, dict[str, Any]] = {
    **{f"{level} {task}": {"level": level, "task": task} for level in LEVELS for task in TASKS},
    "md5": {"summary_mode": "md5"},
    "hash": {"summary_mode": "hash"},
    "hash and tensor": {"summary_mode": "hash", "task": "tensor"},
    "async_dump": {"task": "tensor", "async_dump": True},
    "on_nonfinite": {"on_nonfinite": "tensors"},
    "tensor_list": {"tensor_list": ["linear"]},
    "list": {"list": ["linear"]},
    "data_mode": {"data_mode": ["forward"]},
}


class DispatchWatch(TorchDispatchMode):
    """Notes what torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class FunctionWatch(TorchFunctionMode):
    """Notes what the program calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(resolve_name(func) or repr(func))
        return func(*args, **(kwargs or {}))


MODES = [DispatchWatch, FunctionWatch]


class Inner(nn.Module):
    """Uses what it is given four times: the shares of its gradient are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x) + x * x + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.drop = nn.BatchNorm1d(16), Inner(), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.inner(self.norm(x)) * 2)
        y[0, 0] = 1.0
        spectrum = torch.fft.fft(y.t().contiguous().t()).conj().abs()
        return self.inner(y) + spectrum + y[:, :1].expand(8, 16)


def train(net: nn.Module, run: Any, watch: AbstractContextManager[Any]) -> None:
    """Two steps; `watch` is there from the first forward to the end of the last step."""
    optimizer, x = torch.optim.Adam(net.parameters()), torch.randn(8, 16)
    with watch:
        for _ in range(2):
            result = net(x)
            if run is not None:
                run.save({"result": [result]}, "result")
            result.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if run is not None:
                run.step()


def make_net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(3)
def test_a_mode_entered_inside_the_window_sees_the_same_as_without_a_capture(
    tmp_path: Path, kind: type, way: str
) -> None:
    plain, watch = kind(), kind()
    train(make_net(), None, plain)
    net = make_net()
    with tensorprobe.capture(net, tmp_path, **WAYS[way]) as run:
        train(net, run, watch)
    assert watch.seen == plain.seen and len(plain.seen) > 50
    assert only_step(tmp_path).read("run.json")["coverage"]["failed"] == 0


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(3)
def test_a_mode_entered_before_the_window_sees_the_same_as_without_a_capture(
    tmp_path: Path, kind: type, way: str
) -> None:
    with kind() as plain:
        train(make_net(), None, nullcontext())
    with kind() as watch:
        net = make_net()
        with tensorprobe.capture(net, tmp_path, **WAYS[way]) as run:
            train(net, run, nullcontext())
    assert watch.seen == plain.seen


@pytest.mark.parametrize("kind", MODES)
def test_a_mode_sees_nothing_of_api_dump(tmp_path: Path, kind: type) -> None:
    plain, watch = kind(), kind()
    train(make_net(), None, plain)
    net = make_net()
    api_dump_init(net, tmp_path)
    api_dump_start()
    try:
        train(net, None, watch)
    finally:
        api_dump_stop()
        forget_session()
    assert watch.seen == plain.seen


@pytest.mark.parametrize("kind", MODES)
def test_a_mode_sees_nothing_of_save_and_save_grad(tmp_path: Path, kind: type) -> None:
    def run(keep: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
        leaf = torch.ones(4, requires_grad=True)
        with kind() as watch:
            (keep(leaf * 2).sin() + keep(leaf)).sum().backward()
        return list(watch.seen)

    def keep_by_folder(tensor: torch.Tensor) -> torch.Tensor:
        save(tmp_path, "x", {"x": tensor})
        return save_grad(tmp_path, "x", tensor)

    def keep_by_number(tensor: torch.Tensor) -> torch.Tensor:
        tensorprobe.save(tmp_path / "y", [tensor])
        return tensorprobe.save_grad(tmp_path / "y", tensor)

    plain = run(lambda tensor: tensor)
    assert run(keep_by_folder) == plain
    assert run(keep_by_number) == plain
    save_now.files.drain()
    assert list(tmp_path.rglob("*_grad_*.npy")) and list(tmp_path.glob("*_backward.npy"))


@pytest.mark.parametrize("kind", MODES)
def test_a_mode_sees_nothing_of_seed_all(kind: type) -> None:
    with seed_all(0, rm_dropout=True):  # made at its first use
        pass
    with kind() as watch, seed_all(3, rm_dropout=True):
        pass
    assert watch.seen == []


# -- tensors with classes of their own ---------------------------------------------------------------------------------

seen_by_class: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen_yet() -> Iterator[None]:
    seen_by_class.clear()
    yield


class WithMemory(torch.Tensor):
    """Sees what is computed with its elements, which are its own."""

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> WithMemory:
        return torch.Tensor._make_subclass(cls, content, content.requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen_by_class.append(str(func))
        with torch._C._DisableTorchDispatch():
            result = func(*args, **(kwargs or {}))
        return tree_map(lambda each: each.as_subclass(cls) if isinstance(each, torch.Tensor) else each, result)


class Wrapping(torch.Tensor):
    """Has no elements: it stands around another tensor."""

    content: torch.Tensor

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> Wrapping:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, content.shape, dtype=content.dtype, device=content.device, strides=content.stride()
        )
        wrapper.content = content.detach()
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen_by_class.append(str(func))
        args, kwargs = tree_map(lambda each: getattr(each, "content", each), (args, kwargs or {}))
        return tree_map(lambda each: cls(each) if type(each) is torch.Tensor else each, func(*args, **kwargs))


class Showing(Wrapping):
    """Shows what it is made of, as `torch.compile` asks of such classes."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["content"], None


class Called(torch.Tensor):
    """Sees what is called with it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen_by_class.append(getattr(func, "__name__", repr(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


CLASSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "with memory": WithMemory,
    "showing what it wraps": Showing,
    "with __torch_function__": lambda tensor: tensor.as_subclass(Called),
}


class Uses(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.relu(x @ weight)[:, :2] * 2 + x[:, :2] + x.sum()


def use(make: Callable[[torch.Tensor], torch.Tensor], model: nn.Module) -> None:
    weight = torch.arange(16.0).reshape(4, 4).requires_grad_()
    x = make(torch.arange(16.0).reshape(4, 4) - 8).requires_grad_()
    model(x, weight).sum().backward()


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_class_sees_the_same_as_without_a_capture_and_its_values_are_recorded(
    tmp_path: Path, kind: str, way: str
) -> None:
    model = Uses()
    use(CLASSES[kind], model)
    plain = list(seen_by_class)
    seen_by_class.clear()
    with tensorprobe.capture(model, tmp_path, **WAYS[way]):
        use(CLASSES[kind], model)
    assert seen_by_class == plain and len(plain) > 5
    if way in ("L0 statistics", "mix tensor"):
        given = only_step(tmp_path).records["Module.Uses.forward.0"]["input_args"][0]
        assert (given["Max"], given["Min"]) == (7.0, -8.0)


def test_a_tensor_class_that_shows_its_content_nowhere_is_asked_for_it_and_for_nothing_else(tmp_path: Path) -> None:
    model = Uses()
    use(Wrapping, model)
    plain = list(seen_by_class)
    seen_by_class.clear()
    with tensorprobe.capture(model, tmp_path, task="tensor"):
        use(Wrapping, model)
    assert [name for name in seen_by_class if name != "aten.copy_.default"] == plain
    assert only_step(tmp_path).records["Module.Uses.forward.0"]["input_args"][0]["Max"] == 7.0


# -- the stack of modes ------------------------------------------------------------------------------------------------


def test_a_mode_that_the_program_leaves_after_a_step_is_left(tmp_path: Path) -> None:
    watch = FunctionWatch()
    with tensorprobe.capture(None, tmp_path) as run:
        with watch:
            torch.ones(2)
            run.step()
            torch.ones(2)
        torch.zeros(2)
    torch.zeros(2)
    assert watch.seen == ["torch.ones", "torch.ones"]
    assert torch._C._len_torch_function_stack() == 0
    assert list(only_step(tmp_path, 1).records) == ["Torch.ones.0.forward", "Torch.zeros.0.forward"]


def test_a_window_that_opens_after_the_mode_was_left_is_a_window_like_any_other(tmp_path: Path) -> None:
    watch = FunctionWatch()
    with tensorprobe.capture(None, tmp_path) as run:
        with watch:
            torch.ones(2)
            run.step()
        with FunctionWatch() as other:
            torch.ones(2)
            run.step()
            torch.ones(2)
    assert watch.seen == ["torch.ones"] and other.seen == ["torch.ones"] * 2
    assert torch._C._len_torch_function_stack() == 0
