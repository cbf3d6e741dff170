"""Models that run in several threads: modes belong to threads, windows to the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


def in_thread(work: Callable[[], object]) -> None:
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_model_called_in_another_thread_is_recorded_as_in_the_first(tmp_path: Path, level: str) -> None:
    model, x = Net(), torch.randn(2, 4)
    names = []
    for place, run in (("here", lambda work: work()), ("there", in_thread)):
        session = open_session(tmp_path / place, level=level)
        session.start(model)
        run(lambda: model(x).sum().backward())  # type: ignore[no-untyped-call]
        session.stop()
        assert session.recorder.coverage.failed == 0 and session.recorder.coverage.unseen == {}
        session.close()
        names.append(set(only_step(tmp_path / place).records))
    here, there = names
    assert {name for name in here if "sum" not in name} == {name for name in there if "sum" not in name}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_many_threads_at_once_lose_and_mix_nothing(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    models = [Net() for _ in range(4)]
    inputs = [[torch.randn(3, 4) for _ in range(15)] for _ in models]

    def train(number: int) -> list[torch.Tensor]:
        return [models[number](x).square().sum() for x in inputs[number]]

    expected = [[loss.detach() for loss in train(number)] for number in range(4)]
    session = open_session(tmp_path, level=level)
    session.start(models)
    with ThreadPoolExecutor(4) as pool:
        losses = list(pool.map(train, range(4)))
        list(pool.map(lambda ours: torch.stack(ours).sum().backward(), losses))
    session.stop()
    coverage = session.recorder.coverage
    assert coverage.failed == 0
    session.close()
    assert all(
        torch.equal(a, b) for one, two in zip(expected, losses, strict=True) for a, b in zip(one, two, strict=True)
    )
    records = only_step(tmp_path).records
    calls = 4 * 15
    if level != "L0":
        assert sum(name.startswith("Functional.gelu.") and name.endswith("forward") for name in records) == calls
        assert sum(name.startswith("Functional.linear.") and name.endswith("backward") for name in records) == 2 * calls
        norms = sorted(
            fields["input_args"][0]["Norm"]
            for name, fields in records.items()
            if name.startswith("Functional.linear") and name.endswith("forward") and fields["module_path"] == "2.first"
        )
        assert norms == pytest.approx(sorted(x.double().norm().item() for x in inputs[2]))
    if level != "L1":
        for number in range(4):
            for index in range(15):
                fields = records[f"Module.{number}.Net.forward.{index}"]
                assert fields["output"][0]["shape"] == [3, 4]
                assert f"Module.{number}.Net.backward.{index}" in records


def test_a_module_in_a_thread_has_the_gradient_of_an_input_that_another_thread_made(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), torch.randn(2, 4, requires_grad=True)
    for _ in range(50):
        x * 2  # this thread has made more nodes than the other will
    session = open_session(tmp_path, level="L0", task="tensor")
    session.start(model)
    given = x * 2
    given.retain_grad()
    outputs: list[torch.Tensor] = []
    in_thread(lambda: outputs.append(model(given)))
    outputs[0].sum().backward()
    session.close()
    dump = only_step(tmp_path)
    for name in ("Module.Sequential.backward.0", "Module.0.Sequential.backward.0", "Module.0.0.Linear.backward.0"):
        torch.testing.assert_close(dump.tensor(dump.records[name]["output"][0]), given.grad)


def test_nothing_stays_in_a_thread_of_a_pool(tmp_path: Path) -> None:
    model = Net()
    with ThreadPoolExecutor(1) as pool:
        session = open_session(tmp_path, level="L1")
        session.start(model)
        pool.submit(model, torch.ones(1, 4)).result()
        assert pool.submit(torch._C._len_torch_function_stack).result() == 0
        session.close()
        assert pool.submit(torch._C._len_torch_function_stack).result() == 0
