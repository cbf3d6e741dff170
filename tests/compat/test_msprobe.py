"""The programs of msprobe's manual run unchanged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.compat.program import MANUAL, run_manual, run_program, succeed

FACE = ["PrecisionDebugger", "save", "save_grad", "seed_all", "step"]

# What stands around the fragments of the manual in a user's program.
TRAINING = """
import sys
import torch

model = torch.nn.Linear(2, 1)
data_loader = [(torch.ones(3, 2), torch.zeros(3, 1))] * 2

def train(data, label):
    out = model(data)
    debugger.save(out, "out")
    torch.nn.functional.mse_loss(out, label).backward()
    debugger.step()

path = sys.argv[1]
exec(compile(open(path, encoding="utf-8").read(), path, "exec"))

import msprobe.pytorch as theirs, tensorprobe.pytorch as ours
assert all(getattr(theirs, name) is getattr(ours, name) for name in ours.__all__ if name != 'seed_all')
print(sorted(theirs.__all__))
"""
GRAPH = """
import sys
import types
import mindspore as ms
from mindspore import nn

def run(name, **names):
    path = f"{sys.argv[1]}/msprobe_graph_{name}.py"
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(names)
    exec(compile(open(path, encoding="utf-8").read(), path, "exec"), vars(module))
    return module

ms.set_context(mode=ms.GRAPH_MODE)
x = ms.Tensor([1.0, 2.0])
run("save", nn=nn).Net()(x)
net = run("save_grad", nn=nn).Net()
print(ms.grad(net)(x))
run("step", epochs=2, train_one_epoch=lambda: ms.grad(net)(x))

import msprobe.mindspore as theirs, tensorprobe.mindspore as ours
assert all(getattr(theirs, name) is getattr(ours, name) for name in ours.__all__ if name != 'seed_all')
print(sorted(theirs.__all__))
"""


SEED = """
import inspect
from msprobe.{face} import seed_all
from tensorprobe.{face} import seed_all as ours

print(inspect.signature(seed_all), inspect.signature(ours))
handle = seed_all()
{dropped}
handle.restore()
with ours():
    {dropped}
with seed_all(rm_dropout=False):
    {dropped}
"""
DROPPED = {
    "pytorch": "import torch; print(bool((torch.nn.functional.dropout(torch.ones(64)) == 1).all()))",
    "mindspore": "import mindspore.ops as ops; print(bool((ops.dropout(ops.ones(64)) == 1).all()))",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved_names(path: Path) -> list[str]:
    return sorted(json.loads(path.read_text())["data"])


def test_a_variable_and_its_gradient_are_saved(folder: Path) -> None:
    run_manual("msprobe_single_point.py")
    assert saved_names(folder / "dump_path/step0/rank/debug.json") == ["x2.0.debug", "x2_grad.0.debug"]


def test_every_step_has_its_folder(folder: Path) -> None:
    run_manual("msprobe_single_point_steps.py")
    steps = [folder / f"dump_path/step{number}/rank/debug.json" for number in range(10)]
    assert [saved_names(step) for step in steps] == [["x2.0.debug", "x2_grad.0.debug"]] * 10


@pytest.mark.parametrize("way", ["config", "arguments"])
def test_a_debugger_is_made_from_a_file_or_from_arguments(folder: Path, way: str) -> None:
    shutil.copy(MANUAL / "msprobe_config.json", "config.json")
    printed = succeed(run_program("-c", TRAINING, MANUAL / f"msprobe_debugger_from_{way}.py"))
    assert printed.splitlines()[-1] == str(FACE), "msprobe.pytorch holds the face of tensorprobe"
    for step in ("step0", "step1"):
        assert saved_names(folder / "dump_path" / step / "rank/debug.json") == ["out.0.debug", "out_grad.0.debug"]


def test_values_and_gradients_inside_a_graph_are_saved(folder: Path) -> None:
    gradient, face = succeed(run_program("-c", GRAPH, MANUAL)).splitlines()
    assert gradient.split() == ["[2.", "2.]"]
    assert face == str(FACE), "msprobe.mindspore holds the face of tensorprobe"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.npy"))
    assert files == [
        "dump_data/step0/rank0/grad_grad_float32_0.npy",
        "dump_data/step0/rank0/grad_grad_float32_1.npy",
        "dump_data/step0/rank0/input_float32_0.npy",
        "dump_data/step1/rank0/grad_grad_float32_0.npy",
    ]


@pytest.mark.parametrize("face", DROPPED)
def test_seed_all_turns_dropout_off_as_in_msprobe_and_says_so(face: str) -> None:
    ended = run_program("-c", SEED.format(face=face, dropped=DROPPED[face]))
    signatures, *kept = succeed(ended).splitlines()
    theirs, ours = (
        f"(seed: 'int' = 1234, mode: 'bool' = False, rm_dropout: 'bool' = {each})" for each in (True, False)
    )
    assert signatures == f"{theirs} -> 'SeedHandle' {ours} -> 'SeedHandle'"
    assert kept == ["True", "False", "False"]
    assert [line for line in ended.stderr.splitlines() if line.startswith("[tensorprobe]")] == [
        "[tensorprobe] seed_all: dropout is off from here on, because rm_dropout is True; rm_dropout=False leaves it on"
    ]


@pytest.mark.skipif("MSADAPTER_FOLDER" not in os.environ, reason="needs MSAdapter; MSADAPTER_FOLDER says where it is")
def test_a_program_for_msadapter_is_recorded_where_a_hook_imports_msadapter_first(folder: Path) -> None:
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text("import msadapter\n")
    settings = {"task": "tensor", "dump_path": "./dump_path", "level": "mix"}
    Path("config.json").write_text(json.dumps(settings))
    run_manual("msprobe_msadapter.py", paths=(hook, Path(os.environ["MSADAPTER_FOLDER"])))
    ranks = [folder / f"dump_path/step{number}/rank" for number in range(3)]
    for rank in ranks:
        assert {"dump.json", "stack.json", "construct.json", "dump_tensor_data"} <= {one.name for one in rank.iterdir()}
        tensors = {path.name for path in (rank / "dump_tensor_data").iterdir()}
        assert {
            "Module.linear1.Linear.forward.0.input.0.npy",
            "Module.linear1.Linear.forward.0.parameters.bias.npy",
            "Functional.linear.1.backward.output.0.npy",
        } <= tensors
