"""Memory stays flat over many steps, and the work of a record does not grow with how many came before."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.script import PREAMBLE, run_script
from tests.length import IS_LONG

MEASURED_STEPS = (50, 200, 350) if IS_LONG else (20, 60, 100)
LOOKS = 5
"""So many steps in a row are measured and the least counts: what a thread is still writing is held a moment longer."""
CALL_COUNT = 16_000 if IS_LONG else 10_000

STEPS = (
    PREAMBLE
    + """
import gc, json, tracemalloc

def measure():  # not the size of the process: how it grows is the allocator's affair
    gc.collect()
    tensors = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
               for one in gc.get_objects() if isinstance(one, torch.Tensor)}
    return sys.getallocatedblocks(), sum(tensors.values()), tracemalloc.get_traced_memory()[0]

tracemalloc.start()  # before all: what takes the place of something it did not see looks like growth
debugger = PrecisionDebugger(dump_path="dump", level=sys.argv[1], task=sys.argv[2])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
measured = {}
*ends, looks = map(int, sys.argv[3:])
for step in range(1, ends[-1] + 1):
    debugger.start(model)
    hidden = model(x)
    debugger.save([hidden, model[0].weight], "hidden")
    hidden.square().sum().backward()
    debugger.stop()
    optimizer.step()
    optimizer.zero_grad()
    debugger.step()
    for end in ends:
        if end - looks < step <= end:
            found = measure()
            measured[end] = tuple(map(min, measured.get(end, found), found))
print(json.dumps(measured))
"""
)

CALLS = (
    PREAMBLE
    + """
import gc, json
from tensorprobe.capture.sink import Sink

sizes, waiting = [], []
original = Sink.flush

def flush(sink):
    waiting.append(len(sink._records))
    original(sink)
    gc.collect()
    path = "dump/step0/rank/dump.json.part"
    sizes.append((os.path.getsize(path), sys.getallocatedblocks()))

Sink.flush = flush
debugger = PrecisionDebugger(dump_path="dump", level="L1")
y = torch.zeros(4)
debugger.start(model)
gc.freeze()  # what is there already is not looked through again and again
for _ in range(int(sys.argv[1])):
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


@pytest.mark.parametrize(
    ("level", "task"), [pytest.param("mix", "statistics", marks=pytest.mark.long), ("L1", "tensor")]
)
def test_a_run_of_many_steps_keeps_memory_flat(level: str, task: str, memory_disk: Path) -> None:
    """What is held for each step grows in every stretch of them; a table that has become too small grows in one."""
    measured = result(memory_disk, STEPS, level, task, *map(str, (*MEASURED_STEPS, LOOKS)))
    looks = [measured[str(step)] for step in MEASURED_STEPS]
    growths = [[after - before for before, after in zip(*both, strict=True)] for both in pairwise(looks)]
    blocks, tensor_bytes, traced_bytes = zip(*growths, strict=True)
    steps = MEASURED_STEPS[1] - MEASURED_STEPS[0]
    assert max(blocks) < 4 * steps, f"{blocks} Python objects more after {steps} steps each"
    assert max(tensor_bytes) == 0, f"{tensor_bytes} bytes of tensors more after {steps} steps each"
    assert min(traced_bytes) < 400 * steps, f"{traced_bytes} bytes of Python and numpy more after {steps} steps each"
    assert len(list((memory_disk / "dump").iterdir())) == MEASURED_STEPS[-1]


def test_a_window_of_thousands_of_calls_does_the_same_work_for_every_record(memory_disk: Path) -> None:
    waiting, sizes = result(memory_disk, CALLS, str(CALL_COUNT))
    written = [after[0] - before[0] for before, after in pairwise(sizes)]
    assert max(waiting) <= 256 and len(sizes) >= CALL_COUNT // 256
    per_record = [size / count for size, count in zip(written, waiting[1:], strict=True) if count]
    assert max(per_record) < 1.05 * min(per_record)  # the number in the name grows from one digit to five
    first, second = (  # the fewest: how many records wait to be written depends on who is given the processor
        min(objects for _, objects in half) for half in (sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :])
    )
    assert second < first + 2000, f"{second - first} Python objects more after {CALL_COUNT // 2} calls"
