"""Records the networks of examples/migration, in this process, with or without a fault."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore
import torch

from migration.fault import Fault

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "migration"
sys.path.insert(0, str(EXAMPLES))

import train_mindspore  # noqa: E402
import train_pytorch  # noqa: E402

from tensorprobe import mindspore as mindspore_face  # noqa: E402
from tensorprobe import pytorch as pytorch_face  # noqa: E402
from tensorprobe.migrator import convert_weight  # noqa: E402

Weights = dict[str, torch.Tensor]
STEPS = 2


def set_up() -> None:
    """Once in a process, before the first operation of MindSpore."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()


def record_pytorch(name: str, level: str, folder: Path, steps: int = STEPS) -> Weights:
    """The weights that it began with."""
    with pytorch_face.seed_all(1234, rm_dropout=True):
        return _record_pytorch(name, level, folder, steps)


def _record_pytorch(name: str, level: str, folder: Path, steps: int) -> Weights:
    network, compute_loss = train_pytorch.build(name)
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    pytorch_face.PrecisionDebugger.reset()
    debugger = pytorch_face.PrecisionDebugger(dump_path=str(folder), level=level, task="tensor")
    train_pytorch.train(debugger, name, network, compute_loss, steps)
    return weights


def record_mindspore(
    name: str, level: str, folder: Path, weights: Weights, fault: Fault | None = None, steps: int = STEPS
) -> None:
    with mindspore_face.seed_all(1234, rm_dropout=fault is None or not fault.keeps_dropout):
        _record_mindspore(name, level, folder, weights, fault, steps)


def _record_mindspore(name: str, level: str, folder: Path, weights: Weights, fault: Fault | None, steps: int) -> None:
    module = load_network(name, folder, fault)
    network = module.Network()
    convert_weight(weights if fault is None else _change(weights, fault), network, load=True)
    mindspore_face.PrecisionDebugger.reset()
    debugger = mindspore_face.PrecisionDebugger(dump_path=str(folder), level=level, task="tensor")
    train_mindspore.train(debugger, name, network, module.compute_loss, steps)


def _change(weights: Weights, fault: Fault) -> Weights:
    return {key: torch.from_numpy(fault.change(key, value.numpy())) for key, value in weights.items()}


def load_network(name: str, folder: Path, fault: Fault | None) -> ModuleType:
    """The MindSpore version, its text edited; the edited file lies beside the dump, so that stacks show its lines."""
    path = EXAMPLES / f"{name}_mindspore.py"
    text = path.read_text()
    if fault is not None and fault.right:
        assert fault.right in text, f"{path.name} does not say {fault.right!r} any more"
        text = text.replace(fault.right, fault.wrong)
        path = folder / path.name
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def strip_tensors(folder: Path, target: Path) -> Path:
    """The same run as task `statistics` would have recorded it."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("dump_tensor_data"))
    for path in target.glob("step*/*/dump.json"):
        content = json.loads(path.read_text())
        content["task"] = "statistics"
        _forget_files(content["data"])
        path.write_text(json.dumps(content))
    return target


def _forget_files(content: Any) -> None:
    for value in content.values() if isinstance(content, dict) else content:
        if isinstance(value, (dict, list)):
            _forget_files(value)
    if isinstance(content, dict):
        content.pop("data_name", None)
