"""Deeply nested programs run captured as they run plain, and trees of modules may be of any depth and any manners."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tests.capture.torch.dump import DumpOnDisk, only_step

NEARLY_FULL = "call where Python's stack was nearly used up"
LIMIT = 700
"""Smaller than Python's own, so that little is enough to use it up."""


@contextmanager
def recursion_limit(limit: int) -> Iterator[None]:
    """The program's limit, which a capture leaves as it is."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    yield
    assert sys.getrecursionlimit() == limit
    sys.setrecursionlimit(before)


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    with recursion_limit(LIMIT):
        yield


class Nest(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def make_nest(depth: int) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        model = Nest(model)
    return model


class Tree(nn.Module):
    """A program that recurses by itself, without modules in modules, and calls torch at every level."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.scale = nn.Parameter(torch.full((2,), 0.99))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.descend(x, self.depth)

    def descend(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return self.descend(x * self.scale, depth - 1).sin() if depth else x


class Reached(torch.autograd.Function):
    """A Function that runs a module in its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return run(x.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Functions(nn.Module):
    """Functions in Functions."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.descend(x, self.depth)

    def descend(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return Reached.apply(x, lambda y: self.descend(y * 2, depth - 1)) if depth else x


PROGRAMS: dict[str, Callable[[int], nn.Module]] = {"modules": make_nest, "functions": Tree, "autograd": Functions}


def run(model: nn.Module) -> torch.Tensor:
    x = torch.ones(1, 2, requires_grad=True)
    result = model(x)
    result.sum().backward()
    return result.detach()


def deepest(make: Callable[[int], nn.Module]) -> int:
    """The deepest of these programs that runs plain."""
    least, most = 1, LIMIT
    while least < most:
        depth = (least + most + 1) // 2
        try:
            run(make(depth))
            least = depth
        except RecursionError:
            most = depth - 1
    return least


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.some(3)
def test_what_just_runs_plain_runs_captured_with_the_same_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str, level: str
) -> None:
    make = PROGRAMS[program]
    depth = deepest(make)
    plain = run(make(depth))
    model = make(depth)
    with tensorprobe.capture(model, tmp_path, level=level):
        assert torch.equal(run(model), plain)
    coverage = only_step(tmp_path).read("run.json")["coverage"]
    assert coverage["failed"] == 0
    if level == "mix":
        assert coverage["unseen"][NEARLY_FULL] > 5 and coverage["recorded"] > 50
        assert [text for text in caplog.messages if "stack" in text] == [
            f"Python's stack is nearly used up (sys.getrecursionlimit() is {LIMIT}): calls nested this deeply run and "
            "are counted, but not recorded. Call sys.setrecursionlimit with a larger number to have them recorded"
        ]


def test_220_nested_modules_run_captured_with_the_limit_of_python(tmp_path: Path) -> None:
    model = make_nest(220)
    with recursion_limit(1000):
        plain = run(model)
        with tensorprobe.capture(model, tmp_path, level="mix", task="tensor"):
            assert torch.equal(run(model), plain)
    dump = only_step(tmp_path)
    assert f"Module.{'.'.join(['inner'] * 100)}.Nest.forward.0" in dump.records
    has_all = f"Module.{'.'.join(['inner'] * 220)}.Linear.forward.0" in dump.records  # since Python 3.12
    assert has_all == (NEARLY_FULL not in dump.read("run.json")["coverage"]["unseen"])


def test_with_a_higher_limit_all_of_it_is_recorded(tmp_path: Path) -> None:
    depth = deepest(make_nest)
    model = make_nest(depth)
    with recursion_limit(2 * LIMIT), tensorprobe.capture(model, tmp_path, level="mix"):
        run(model)
    dump = only_step(tmp_path)
    assert f"Module.{'.'.join(['inner'] * depth)}.Linear.backward.0" in dump.records
    assert dump.read("run.json")["coverage"]["unseen"] == {}


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self(x * 2)


class EndlessFunction(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x.sin()) + 1


class EndlessAutograd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Reached.apply(x, self.forward)


class EndlessAll(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Reached.apply(x.sin(), self)


@pytest.mark.parametrize("kind", [Endless, EndlessFunction, EndlessAutograd, EndlessAll])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.some(2)
def test_a_program_that_recurses_for_ever_ends_as_it_would_and_its_dump_is_whole(
    tmp_path: Path, kind: type[nn.Module], level: str
) -> None:
    model = kind()
    with pytest.raises(RecursionError), tensorprobe.capture(model, tmp_path, level=level):
        run(model)
    assert sys.getrecursionlimit() == LIMIT and torch._C._len_torch_function_stack() == 0
    with tensorprobe.capture(nn.Identity(), tmp_path / "second", level="mix") as _:  # nothing is left standing aside
        torch.ones(2).sin()
    assert list(only_step(tmp_path / "second").records) == ["Torch.ones.0.forward", "Tensor.sin.0.forward"]


# -- trees of modules --------------------------------------------------------------------------------------------------


def record(tmp_path: Path, model: nn.Module) -> DumpOnDisk:
    with tensorprobe.capture(model, tmp_path, level="mix"):
        model(torch.ones(1, 2))
    return only_step(tmp_path)


class Deep(nn.Module):
    """Modules in modules, deeper than the stack, of which it calls the innermost."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.tree = inner = Nest(nn.Identity())
        for _ in range(depth):
            inner.inner = Nest(nn.Identity())
            inner = inner.inner
        self.__dict__["innermost"] = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.__dict__["innermost"](x)


def test_a_tree_that_is_deeper_than_the_stack_is_recorded(tmp_path: Path) -> None:
    dump = record(tmp_path, Deep(2 * LIMIT))
    path = ".".join(["tree", *["inner"] * (2 * LIMIT)])
    assert f"Module.{path}.Nest.forward.0" in dump.records
    assert dump.read("run.json")["coverage"]["failed"] == 0


def refuse(*_: Any, **__: Any) -> Any:
    raise ValueError("not in this class")


@pytest.mark.parametrize(
    "name", ["named_children", "children", "named_modules", "modules", "named_parameters", "parameters", "__len__"]
)
@pytest.mark.parametrize("has_model", [True, False])
def test_methods_of_a_module_that_raise_hinder_nothing(tmp_path: Path, name: str, has_model: bool) -> None:
    kind = type("Refusing", (nn.Sequential,), {name: refuse, "forward": nn.Sequential.forward})
    model = nn.Sequential(nn.Linear(2, 2), kind(nn.Linear(2, 2)), nn.Linear(2, 2))
    with tensorprobe.capture(model if has_model else None, tmp_path, level="mix" if has_model else "L1"):
        model(torch.ones(1, 2))
    dump = only_step(tmp_path)
    assert dump.read("run.json")["coverage"]["failed"] == 0
    paths = {fields.get("module_path") for fields in dump.records.values()}
    assert {"0", "1.0", "2"} <= paths


class Odd(nn.Linear):
    """Answers with an error of its own to a name that it does not know."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise ValueError(f"what is {name}?") from None


def test_a_module_with_errors_of_its_own_for_unknown_names_is_recorded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].__class__ = Odd  # torch itself asks for unknown names where a module is made
    dump = record(tmp_path, model)
    assert {"Module.0.Linear.forward.0", "Module.1.Odd.forward.0"} <= set(dump.records)
    assert dump.read("run.json")["coverage"]["failed"] == 0


class Closed(nn.Module):
    """Shows its modules to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    @property
    def _modules(self) -> Any:
        raise ValueError("closed")

    @_modules.setter
    def _modules(self, modules: Any) -> None:
        self.__dict__["held"] = modules

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_a_module_that_cannot_be_looked_into_is_told_and_counted_and_the_rest_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = record(tmp_path, nn.Sequential(nn.Linear(2, 2), Closed(), nn.Linear(2, 2)))
    assert {"Module.0.Linear.forward.0", "Module.2.Linear.forward.0", "Functional.linear.1.forward"} <= set(
        dump.records
    )
    assert dump.read("run.json")["coverage"]["failed"] == 1
    assert (
        "1, with the modules in it, was not recorded (ValueError: closed); further failures of this kind are counted"
        in caplog.messages
    )
