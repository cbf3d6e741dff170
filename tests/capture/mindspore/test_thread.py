"""Models that run in another thread: a window belongs to the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import pytest
from mindspore import Tensor, nn, ops

from tests.capture.mindspore.recording import float_tensor, record


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 8), nn.Dense(8, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(ops.gelu(self.first(x)))


def in_thread(work: Callable[[], Any]) -> None:
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_model_trained_in_another_thread_is_recorded_as_in_the_first(level: str, tmp_path: Path) -> None:
    model, x = Net(), float_tensor(2, 4)
    run = mindspore.grad(lambda x: model(x).sum(), 0, model.trainable_params())
    here = record(tmp_path / "here", lambda: run(x), model, level=level)
    there = record(tmp_path / "there", lambda: in_thread(lambda: run(x)), model, level=level)
    assert here.records.keys() == there.records.keys() and len(here.records) >= 8
    assert there.coverage["failed"] == 0 and there.coverage["unseen"] == here.coverage["unseen"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_threads_that_take_turns_lose_nothing_and_compute_the_same(level: str, tmp_path: Path) -> None:
    """All at once is more than MindSpore 2.10 bears: it crashes, with and without a window."""
    models = [Net() for _ in range(3)]
    x = float_tensor(2, 4)
    plain = [model(x).asnumpy().tobytes() for model in models]
    turn = threading.Lock()
    seen: dict[int, list[bytes]] = {number: [] for number in range(3)}

    def work(number: int) -> None:
        for _ in range(5):
            with turn:
                seen[number].append(models[number](x).asnumpy().tobytes())

    def run_all() -> None:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    dump = record(tmp_path, run_all, models, level=level)
    assert seen == {number: [plain[number]] * 5 for number in range(3)} and dump.coverage["failed"] == 0
    if level != "L1":
        assert {
            f"Cell.{number}.Net.forward.{index}" for number in range(3) for index in range(5)
        } <= dump.records.keys()
    if level != "L0":
        calls = [name for name in dump.records if name.startswith("Functional.gelu.")]
        assert len(calls) == 15
        paths = {fields["module_path"] for name, fields in dump.records.items() if name.startswith("Primitive.matmul")}
        assert paths == {f"{number}.{layer}" for number in range(3) for layer in ("first", "second")}
