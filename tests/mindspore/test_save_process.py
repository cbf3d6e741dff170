"""`tensorprobe.save` in a program of its own, as the seeds write it: the package is imported before MindSpore, and
passed on by another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.length import PATIENCE_SECONDS

SOURCE = Path(__file__).parents[2] / "src"

PROGRAM = """
import troubleshooter as ts
import os, signal, time
import numpy as np
import mindspore as ms


class NetWithSaveGrad(ms.nn.Cell):
    def __init__(self, path):
        super(NetWithSaveGrad, self).__init__()
        self.dense = ms.nn.Dense(3, 2, weight_init="zeros", bias_init="zeros")
        self.path = path

    def construct(self, x):
        ts.save(self.path + "input", x)
        x = self.dense(x)
        ts.save(self.path + "dense", x)
        x = ts.save_grad(self.path + "dense", x)
        return x


ms.set_context(mode=ms.GRAPH_MODE)
net = NetWithSaveGrad("./ms_ts_save/")
loss_fn = ms.nn.CrossEntropyLoss()

def forward_fn(data, label):
    logits = net(data)
    return loss_fn(logits, label), logits

grad_fn = ms.grad(forward_fn, None, net.trainable_params(), has_aux=True, return_ids=True)
data, label = ms.Tensor([[0.2, 0.5, 0.2]], ms.float32), ms.Tensor([[1, 0]], ms.float32)
for _ in range(30):
    grad_fn(data, label)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def test_graphs_save_whatever_was_imported_first_and_lose_nothing_by_sigterm(tmp_path: Path) -> None:
    (tmp_path / "troubleshooter").mkdir()
    (tmp_path / "troubleshooter" / "__init__.py").write_text("from tensorprobe import save, save_grad\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    out = tmp_path / "ms_ts_save"
    expected = [
        f"{3 * n + i}_{name}.npy" for n in range(30) for i, name in enumerate(["input", "dense", "dense_backward"])
    ]
    assert sorted(path.name for path in out.iterdir()) == sorted(expected)
    assert np.array_equal(np.load(out / "2_dense_backward.npy"), [[-0.5, 0.5]])
