"""A value that changed in a way that is hard to notice is never reported with the statistics it had before."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import _unsafe_preserve_version_counter as preserve_version

from tensorprobe.capture.torch.verification import VARIABLE
from tests.capture.torch.dump import DumpOnDisk
from tests.capture.torch.early_writes import EARLY_PROGRAMS, Changing
from tests.capture.torch.training import open_session
from tests.capture.torch.watched import Watched, check
from tests.capture.torch.writes import Program
from tests.length import count_examples


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


FILTER = """
tensor: {remove: [mul_, add_, copy_, fill_]}
torch: {remove: [add, _foreach_mul_, _fused_adamw_, native_batch_norm, batch_norm, split_with_sizes_copy]}
distributed: {remove: [all_gather_into_tensor, all_gather, reduce_scatter_tensor]}
"""
WAYS: dict[str, dict[str, Any]] = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "listed calls": {"level": "L1", "list": ["clone"]},
    "inputs only": {"level": "L1", "data_mode": ["forward", "input"]},
    "without the calls that write": {"level": "L1", "api_yaml": FILTER},
}


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("prepare", EARLY_PROGRAMS.values(), ids=EARLY_PROGRAMS)
def test_writes_through_what_was_taken_before_the_window(
    tmp_path: Path, prepare: Callable[[], Program], way: dict[str, Any]
) -> None:
    if "api_yaml" in way:
        (tmp_path / "apis.yaml").write_text(way["api_yaml"])
        way = {**way, "api_yaml": tmp_path / "apis.yaml"}
    program = prepare()
    watched = Watched(tmp_path / "dump", **way)

    def with_calls_seen(see: Callable[[torch.Tensor], torch.Tensor]) -> None:
        see(torch.relu(torch.ones(2, 2)))  # parameters are known only once calls are seen
        program(see)

    check(watched, with_calls_seen)
    watched.session.close()


# -- random programs ---------------------------------------------------------------------------------------------------


class Stage:
    """A few tensors of different origin, what was taken of them before the window, and everything that can be done."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.other = nn.Parameter(torch.randn(3, 4))
        self.norm = nn.BatchNorm1d(4)
        self.buffer = torch.randn(3, 4)
        self.made = torch.zeros(3, 4)
        self.taken: dict[str, Any] = {}
        self.optimizers = {
            "fused": torch.optim.AdamW([self.weight], lr=0.1, fused=True),
            "foreach": torch.optim.SGD([self.weight, self.other], lr=0.1, foreach=True),
        }
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_hook(lambda *_: Changing.data(self.weight))

    def take(self, kind: str) -> None:
        self.taken[kind] = TAKE[kind](self.weight)

    def tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = getattr(self, name)
        return tensor


TAKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "data": lambda x: x.data,
    "detached": lambda x: x.detach(),
    "array": lambda x: x.detach().numpy(),
    "memoryview": lambda x: memoryview(x.detach().numpy()),
    "dlpack": lambda x: torch.from_dlpack(x.detach()),
    "storage": lambda x: x.untyped_storage(),
}


def write_taken(stage: Stage, x: torch.Tensor) -> None:
    for kind, alias in stage.taken.items():
        if kind == "storage":
            alias[5] = 64
        elif kind == "array":
            alias += 1
        elif kind == "memoryview":
            alias[0, 0] = alias[0, 0] + 1
        else:
            torch._foreach_mul_([alias], 1.5)


def refill(stage: Stage, x: torch.Tensor) -> None:
    storage = x.untyped_storage()
    size = storage.nbytes()
    if storage.resizable() and "dlpack" not in stage.taken:  # numpy forbids it; DLPack would look at freed memory
        storage.resize_(0)
        storage.resize_(size)
    with torch.no_grad(), preserve_version(x):
        x.copy_(torch.randn(x.shape))


def run_backward(stage: Stage, x: torch.Tensor) -> None:
    (stage.weight * 2).square().sum().backward()


def step_with(name: str) -> Callable[[Stage, torch.Tensor], None]:
    def step(stage: Stage, x: torch.Tensor) -> None:
        for parameter in (stage.weight, stage.other):
            parameter.grad = torch.ones_like(parameter)
        stage.optimizers[name].step()

    return step


def without_gradient(write: Callable[[torch.Tensor], Any]) -> Callable[[Stage, torch.Tensor], None]:
    def act(stage: Stage, x: torch.Tensor) -> None:
        with torch.no_grad():
            write(x)

    return act


def write_in_place_without_a_version(x: torch.Tensor) -> None:
    with preserve_version(x):
        x.mul_(1.5)


ACTIONS: dict[str, Callable[[Stage, torch.Tensor], Any]] = {
    "add in place": without_gradient(lambda x: x.add_(1)),
    "write a part": without_gradient(lambda x: x[1:].mul_(2)),
    "set item": without_gradient(lambda x: x.__setitem__(0, 3.0)),
    "foreach": without_gradient(lambda x: torch._foreach_add_([x], 1.0)),
    "out": without_gradient(lambda x: torch.add(x, 1, out=x)),
    "write data": lambda _, x: x.data.mul_(1.5),
    "write numpy": lambda _, x: np.multiply(array := x.detach().numpy(), 0.5, out=array),
    "write storage": lambda _, x: x.untyped_storage().fill_(0),
    "write without a version": without_gradient(write_in_place_without_a_version),
    "refill": refill,
    "exchange data": lambda _, x: setattr(x, "data", torch.randn(x.shape)),
    "set": without_gradient(lambda x: x.set_(torch.randn(x.shape))),
    "swap": lambda stage, _: torch.utils.swap_tensors(stage.weight, stage.other),
    "collective": lambda _, x: torch.distributed.all_gather_into_tensor(x.detach(), torch.randn(3, 4)),
    "optimizer, fused": step_with("fused"),
    "optimizer, foreach": step_with("foreach"),
    "normalise": lambda stage, _: stage.norm(torch.randn(5, 4) + 2),
    "normalise into it": lambda _, x: torch.batch_norm(
        torch.randn(5, 4), None, None, x[0].detach(), x[1].detach(), True, 0.1, 1e-5, False
    ),
    "module hook": lambda stage, _: stage.layer(torch.ones(1, 4)),
    "backward": run_backward,
    "write what was taken": write_taken,
    "take data": lambda stage, _: stage.take("data"),
    "take storage": lambda stage, _: stage.take("storage"),
    "make": lambda stage, _: setattr(stage, "made", torch.randn(3, 4) * 1),
    "nothing": lambda *_: None,
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "transposed": lambda x: x.t(),
    "flat": lambda x: x.view(12),
    "part": lambda x: x[1:],
    "expanded": lambda x: x[:1].expand(5, 4),
    "detached": lambda x: x.detach(),
    "bits": lambda x: x.detach().view(torch.int32),
}
TENSORS = ["weight", "other", "buffer", "made"]
FILTERS: list[dict[str, Any]] = [{}, {"list": ["clone"]}, {"data_mode": ["forward", "input"]}, {"level": "mix"}]


@pytest.mark.usefixtures("process_group")
@settings(max_examples=count_examples(40))
@given(
    taken=st.sets(st.sampled_from(sorted(TAKE)), max_size=2),
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(TENSORS), st.sampled_from(sorted(VIEWS))),
        min_size=1,
        max_size=12,
    ),
    options=st.sampled_from(FILTERS),
)
def test_every_look_of_any_program_is_the_truth_of_that_moment(
    taken: set[str], steps: list[tuple[str, str, str]], options: dict[str, Any]
) -> None:
    stage = Stage()
    for kind in taken:
        stage.take(kind)

    def program(see: Callable[[torch.Tensor], torch.Tensor]) -> None:
        see(torch.relu(torch.ones(2, 2)))
        for action, name, view in steps:
            see(VIEWS[view](stage.tensor(name)))
            ACTIONS[action](stage, stage.tensor(name))
            see(VIEWS[view](stage.tensor(name)))
            see(stage.tensor(name))
        for buffer in (stage.norm.running_mean, stage.norm.num_batches_tracked):
            assert buffer is not None
            see(buffer)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1")
        watched = Watched(Path(folder), **{"level": "L1", **options})
        try:
            check(watched, program)
        finally:
            coverage = watched.session.recorder.coverage
            watched.session.close()
    assert (coverage.stale, coverage.failed) == (0, 0)


# -- hooks in backward -------------------------------------------------------------------------------------------------

HOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda gradient: gradient.mul_(3),
    "numpy": lambda gradient: gradient.numpy().__imul__(3),
    "memoryview": lambda gradient: memoryview(gradient.numpy()).__setitem__((0, 0), 7.0),
    "data": lambda gradient: gradient.data.mul_(3),
    "dlpack": lambda gradient: torch.from_dlpack(gradient).mul_(3),
    "storage": lambda gradient: gradient.untyped_storage().fill_(0),
}


def make_gradients(hook: Callable[[torch.Tensor], Any], is_early: bool) -> list[torch.Tensor]:
    """A hook that writes to the gradient that one call returned and the next is given; what the next is given."""
    given: list[torch.Tensor] = []
    x = torch.full((2, 3), 0.5, requires_grad=True)
    y = x * 2

    def write(gradient: torch.Tensor) -> None:
        hook(gradient)
        given.append(gradient.clone())

    if is_early:
        y.register_hook(write)
    z = torch.exp(y)
    if not is_early:
        y.register_hook(write)
    z.sum().backward()
    return given


@pytest.mark.parametrize("is_early", [True, False], ids=["hooked before the call", "hooked after it"])
@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_a_tensor_hook_that_writes_to_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Callable[[torch.Tensor], Any], is_early: bool
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    session = open_session(tmp_path, level="L1")
    session.start()
    (given,) = make_gradients(hook, is_early)
    session.close()
    (folder,) = (tmp_path / "step0").iterdir()
    leaf = DumpOnDisk(folder).records["Tensor.mul.0.backward"]["input"][0]
    assert leaf["Norm"] == pytest.approx(given.norm().item())
