"""A user's program for MSAdapter: models, a step of training, and the dump that it leaves in `./dump`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def why_not() -> str | None:
    """Why there is no MSAdapter in this process; None if there is."""
    if importlib.util.find_spec("mindspore") is None or importlib.util.find_spec("msadapter") is None:
        return "needs mindspore and msadapter: install it with pip install --no-deps --target FOLDER, PYTHONPATH=FOLDER"
    loaded = sys.modules.get("torch")
    if loaded is not None and "msadapter" not in sys.modules:
        return f"torch is PyTorch ({loaded.__version__}) in this process, and MSAdapter needs one of its own"
    return None


_REASON = why_not()
if _REASON is not None:
    pytest.skip(_REASON, allow_module_level=True)

# isort: off
import mindspore  # noqa: E402
import msadapter  # noqa: E402, F401  the first import makes the second what it is
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tensorprobe.mindspore import PrecisionDebugger  # noqa: E402
# isort: on

mindspore.device_context.cpu.op_tuning.threads_num(1)  # with several, one program has other bits from run to run

DUMP = Path("dump")


class Net(nn.Module):  # type: ignore[misc]
    """Calls of every kind: layers, functions, methods, operators, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(8, 3, bias=False)

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        y = F.relu(self.norm(self.conv1(x))) * scale
        return torch.add(self.fc(y.reshape(2, 8)), 1.0)


class Deep(nn.Module):  # type: ignore[misc]
    """Layers that are made of many calls, random ones, a Primitive of MindSpore, and a nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1)
        self.norm = nn.LayerNorm(8)
        self.recurrent = nn.GRU(8, 8)
        self.dropout = nn.Dropout(0.2)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)
        self.activation = mindspore.ops.ReLU()

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x)[0])
        x = self.dropout(F.gelu(self.recurrent(x)[0]))
        x = self.activation(self.conv(x.permute(1, 2, 0))).permute(2, 0, 1)
        x = torch.cat([x, x], 0).masked_fill(torch.zeros(6, 2, 8) > 0, 0.0)[:3]
        y = F.log_softmax(self.head(x).reshape(-1, 4), -1)
        return y, {"largest": torch.topk(y, 2)[0]}


def make_net() -> tuple[Net, Any]:
    torch.manual_seed(0)
    mindspore.set_seed(0)
    generator = np.random.default_rng(0)
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(mindspore.Tensor(generator.standard_normal(tuple(parameter.shape)).astype(np.float32)))
    return model, mindspore.Tensor(generator.standard_normal((2, 1, 4, 4)).astype(np.float32))


def loss_of(model: Any, x: Any) -> Any:
    return model(x, scale=2.0).square().sum()


def train_step(model: Any, x: Any) -> Any:
    loss = loss_of(model, x)
    loss.backward()
    return loss


class DumpOnDisk:
    """One step of one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.document = json.loads((folder / "dump.json").read_text())
        self.records: dict[str, Any] = self.document["data"]

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def array(self, leaf: dict[str, Any]) -> np.ndarray[Any, Any]:
        """The stored content of a leaf."""
        return np.load(self.folder / "dump_tensor_data" / leaf["data_name"])

    def files(self) -> set[str]:
        return {path.name for path in (self.folder / "dump_tensor_data").iterdir()}


def dump_of(step: int = 0, folder: Path = DUMP) -> DumpOnDisk:
    return DumpOnDisk(folder / f"step{step}" / "rank")


def record_step(level: str = "mix", task: str = "statistics", **keys: Any) -> DumpOnDisk:
    """One recorded step of training."""
    Path("config.json").write_text(json.dumps({"dump_path": str(DUMP), "level": level, "task": task, **keys}))
    debugger = PrecisionDebugger("config.json")
    model, x = make_net()
    debugger.start(model)
    train_step(model, x)
    debugger.stop()
    debugger.step()
    return dump_of()
