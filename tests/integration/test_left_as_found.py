"""Nothing stays behind: models, optimizers and tensors are saved, copied and pickled as if there were no capture, and
after four hundred windows the process is what it was."""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe.capture.session import Session
from tests.capture.torch.training import open_session
from tests.integration.script import PREAMBLE, run_script
from tests.length import IS_LONG

Bytes = dict[str, bytes]


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def snapshots(place: str, model: nn.Module, optimizer: torch.optim.Optimizer, *tensors: torch.Tensor) -> Bytes:
    """All the ways in which a program takes its state away."""
    state = model.state_dict()
    found = {}
    for name, value in {"model": model, "optimizer": optimizer, "state_dict": state, "tensors": tensors}.items():
        plain = [tensor.detach() for tensor in tensors] if name == "tensors" else value
        found[f"torch.save of the {name}"] = saved(plain)
        found[f"pickle of the {name}"] = saved(pickle.loads(pickle.dumps(plain)))  # its own bytes hold addresses
        found[f"deepcopy of the {name}"] = saved(copy.deepcopy(plain))
    return {f"{place}: {way}": content for way, content in found.items()}


class Checkpointing(nn.Module):
    """Saves, copies and pickles itself and what it computes in the middle of its forward."""

    inside: list[Bytes] = []  # noqa: RUF012  on the class: what is on the model would be pickled with it

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x))
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.inside.append(snapshots("inside", self, optimizer, hidden, x))
        assert copy.deepcopy(self.second)(hidden).requires_grad
        return self.second(hidden.relu())


def run(session: Session | None) -> Bytes:
    torch.manual_seed(3)
    Checkpointing.inside.clear()
    model, x = Checkpointing(), torch.randn(4, 6, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    found: Bytes = {}

    def take(place: str, *tensors: torch.Tensor) -> None:
        found.update(snapshots(f"{len(found)} {place}", model, optimizer, x, *tensors))

    for _ in range(2):
        if session is not None:
            session.start(model)
        take("before the forward")
        output = model(x)
        take("after the forward", output)
        loss = output.square().sum()
        loss.backward(retain_graph=True)
        take("after the backward", output, loss)
        if session is not None:
            session.stop()
        take("after stop", output, loss)
        loss.backward()
        optimizer.step()
        take("after the optimizer")
        optimizer.zero_grad()
        if session is not None:
            session.step()
        take("after step", output, loss)
    for number, content in enumerate(Checkpointing.inside):
        found.update({f"{number} {way}": data for way, data in content.items()})
    return found


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_is_saved_copied_and_pickled_has_the_bytes_it_has_without_capture(level: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = run(None)
        session = open_session(tmp_path, level=level, task="tensor")
        recorded = run(session)
        session.close()
    assert plain.keys() == recorded.keys() and len(plain) > 100
    assert [way for way in plain if plain[way] != recorded[way]] == []


def test_a_copy_that_was_made_in_a_window_trains_on_by_itself(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(3, 4)
    session = open_session(tmp_path, level="mix", task="tensor")
    session.start(model)
    model(x).sum().backward()
    twin = copy.deepcopy(model)
    loaded: nn.Module = pickle.loads(pickle.dumps(model))
    session.stop()
    session.step()
    session.close()
    for candidate in (twin, loaded):
        candidate.zero_grad()
        candidate(x).sum().backward()
        pairs = zip(model.parameters(), candidate.parameters(), strict=True)
        assert all(
            torch.equal(one.grad, other.grad) for one, other in pairs if one.grad is not None and other.grad is not None
        )
        assert all(not vars(tensor) for tensor in candidate.parameters())


CYCLES = (
    PREAMBLE
    + """
import gc, json, threading
import torch.distributed, torch.optim, torch._dynamo

OWNERS = [
    torch, torch.nn.Module, torch.Tensor, torch.nn.Parameter, *torch.autograd.Function.__mro__[:-1],
    type(torch.autograd.Function), torch.autograd, torch.autograd.graph, torch.autograd.function, torch.distributed,
    torch.distributed.distributed_c10d, torch.optim, torch.optim.Optimizer, torch.optim.SGD,
    sys.modules["torch.optim.optimizer"], torch._dynamo, torch._dynamo.eval_frame, torch.jit, torch.jit.ScriptFunction,
    torch.jit.ScriptModule, torch.nn.functional, torch.nn.modules.module, torch.overrides, torch.utils.checkpoint,
    torch.func, torch.cuda,
]

def surroundings():
    found = {(str(owner), name): value for owner in OWNERS for name, value in dict(vars(owner)).items()}
    for module in model.modules():
        for name, value in vars(module).items():
            found[id(module), name] = dict(value) if isinstance(value, dict) else value
    for parameter in model.parameters():
        found[id(parameter)] = (vars(parameter), parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    found["signals"] = [signal.getsignal(number) for number in range(1, 32)]
    found["modes"] = torch._C._len_torch_function_stack()
    found["hooks"] = (sys.getprofile(), sys.gettrace(), sys.excepthook, threading.excepthook)
    return found

def count():
    gc.collect()
    return {
        "threads": len(threading.enumerate()),
        "files": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
    }

def cycle(number):
    debugger.start(model)
    if number % 2:  # and none in the other half of the windows
        loss = model(x).sum()
        loss.backward()
    debugger.stop()
    if has_step:
        debugger.step()

has_step = sys.argv[1] == "step"
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = surroundings()
debugger = PrecisionDebugger(dump_path=sys.argv[2], level="mix")
counts = []
for windows in (int(sys.argv[3]), 3 * int(sys.argv[3])):  # from one line: each line that calls is a stack of its own
    for number in range(windows):
        cycle(number)
    counts.append(count())
early, late = counts
if not has_step:
    debugger.step()
model.zero_grad()
after = surroundings()
changed = [str(key) for key in before.keys() | after.keys()
           if (before.get(key) is not after.get(key)) and before.get(key) != after.get(key)]
PrecisionDebugger.reset()
print(json.dumps({"early": early, "late": late, "changed": changed, "threads": len(threading.enumerate())}))
"""
)


@pytest.mark.parametrize("step", ["step", "no step"])
def test_after_many_windows_everything_is_as_it_was(step: str, memory_disk: Path, tmp_path: Path) -> None:
    windows = 100 if IS_LONG else 30
    measured = json.loads(run_script(tmp_path, CYCLES, step, str(memory_disk), str(windows)).stdout)
    early, late = measured["early"], measured["late"]
    assert measured["changed"] == [] and measured["threads"] == 1
    assert late["threads"] == early["threads"] <= 3 and late["files"] == early["files"]
    assert late["objects"] - early["objects"] < 20
    assert late["blocks"] - early["blocks"] < 375  # caches of torch; they do not grow with the windows


MANY_WINDOWS = (
    PREAMBLE
    + """
import json

def traffic():
    counters = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(counters["rchar"]) + int(counters["wchar"])

debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
moved = []
for window in range(int(sys.argv[2])):
    debugger.start(model)
    model(x)
    before = traffic()
    debugger.stop()
    moved.append(traffic() - before)
print(json.dumps(moved))
"""
)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count bytes")
def test_the_last_window_of_a_step_costs_what_the_tenth_did(memory_disk: Path, tmp_path: Path) -> None:
    windows, some = (600, 100) if IS_LONG else (200, 50)
    moved = json.loads(run_script(tmp_path, MANY_WINDOWS, str(memory_disk), str(windows)).stdout)
    early, late = sorted(moved[10 : 10 + some]), sorted(moved[-some:])
    assert late[some // 2] < 1.2 * early[some // 2]  # half of them; now and then a group of calls is moved as a whole
    assert sum(late) < 2 * sum(early)
