"""Memory stays flat over many steps, and the work of a record does not grow with how many came before."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.script import PREAMBLE, run_script

STEPS = (
    PREAMBLE
    + """
import gc, json, tracemalloc

def measure():  # not the size of the process: how it grows is the allocator's affair
    gc.collect()
    tensors = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
               for one in gc.get_objects() if isinstance(one, torch.Tensor)}
    return sys.getallocatedblocks(), sum(tensors.values()), tracemalloc.get_traced_memory()[0]

tracemalloc.start()
debugger = PrecisionDebugger(dump_path="dump", level=sys.argv[1], task=sys.argv[2])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
measured = {}
for step in range(1, 201):
    debugger.start(model)
    hidden = model(x)
    debugger.save([hidden, model[0].weight], "hidden")
    hidden.square().sum().backward()
    debugger.stop()
    optimizer.step()
    optimizer.zero_grad()
    debugger.step()
    if step in (50, 200):
        measured[step] = measure()
print(json.dumps(measured))
"""
)

CALLS = (
    PREAMBLE
    + """
import json
from tensorprobe.capture.sink import Sink

sizes, waiting = [], []
original = Sink.flush

def flush(sink):
    waiting.append(len(sink._records))
    original(sink)
    path = "dump/step0/rank/dump.json.part"
    sizes.append((os.path.getsize(path), sys.getallocatedblocks()))

Sink.flush = flush
debugger = PrecisionDebugger(dump_path="dump", level="L1")
y = torch.zeros(4)
debugger.start(model)
for _ in range(16000):
    torch.sin(y)
count = len(sizes)
Sink.flush = original
debugger.stop()
debugger.step()
print(json.dumps([waiting[:count], sizes[:count]]))
"""
)


def result(folder: Path, script: str, *arguments: str) -> Any:
    return json.loads(run_script(folder, script, *arguments).stdout)


@pytest.mark.parametrize(("level", "task"), [("mix", "statistics"), ("L1", "tensor")])
def test_a_run_of_200_steps_keeps_memory_flat(level: str, task: str, tmp_path: Path) -> None:
    measured = result(tmp_path, STEPS, level, task)
    blocks, tensor_bytes, traced_bytes = (measured["200"][kind] - measured["50"][kind] for kind in range(3))
    assert blocks < 300, f"{blocks} Python objects more after 150 steps"
    assert tensor_bytes == 0, f"{tensor_bytes} bytes of tensors more after 150 steps"
    assert traced_bytes < 50_000, f"{traced_bytes} bytes of Python and numpy more after 150 steps"
    assert len(list((tmp_path / "dump").iterdir())) == 200


def test_a_window_of_16000_calls_does_the_same_work_for_every_record(tmp_path: Path) -> None:
    waiting, sizes = result(tmp_path, CALLS)
    written = [after[0] - before[0] for before, after in pairwise(sizes)]
    assert max(waiting) <= 256 and len(sizes) >= 62
    per_record = [size / count for size, count in zip(written, waiting[1:], strict=True) if count]
    assert max(per_record) < 1.05 * min(per_record)  # the number in the name grows from one digit to five
    first, second = (
        max(objects for _, objects in half) for half in (sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :])
    )
    assert second < first + 2000, f"{second - first} Python objects more after 8,000 calls"
