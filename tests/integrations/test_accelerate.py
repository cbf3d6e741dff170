"""The recipe for accelerate, with accumulation and an epoch that ends in the middle of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tensorprobe.pytorch import PrecisionDebugger
from tests.integrations.dump import count_calls
from tests.integrations.page import recorded_steps


def train(debugger: PrecisionDebugger | None, **options: Any) -> list[torch.Tensor]:
    """Seven batches, two to a step; every loss, and every weight afterwards."""
    torch.manual_seed(0)
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate takes one precision in a process
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True, **options)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    data = TensorDataset(torch.randn(28, 8), torch.randint(0, 4, (28,)))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), DataLoader(data, batch_size=4)
    )
    losses = []
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            if debugger is not None:
                debugger.start(accelerator.unwrap_model(model))
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            losses.append(loss.detach().clone())
            if debugger is not None:
                debugger.stop()
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and debugger is not None:
            debugger.step()
    return [*losses, *(weight.detach().clone() for weight in model.parameters())]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_step_holds_its_micro_batches_and_the_losses_stay_the_same(precision: str) -> None:
    plain = train(None, mixed_precision=precision)
    debugger = PrecisionDebugger(dump_path="dump", level="L0")
    debugger.set_init_step(5)
    recorded = train(debugger, mixed_precision=precision)
    assert len(plain) == len(recorded) and all(map(torch.equal, plain, recorded))
    assert recorded_steps() == [f"step{number}/rank" for number in (5, 6, 7, 8)]
    assert [count_calls(step, "3.Linear") for step in (5, 6, 7, 8)] == [(2, 2)] * 3 + [(1, 1)]
