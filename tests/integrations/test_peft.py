"""A model with adapters of peft."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import tensorprobe
from tests.integrations.trainer_program import SIZES

FAULTY = "base_model.model.model.layers.0.self_attn.v_proj"


def train(dump_path: str | None, *, fault: bool = False) -> list[torch.Tensor]:
    """Two steps; the losses, and the weights of the adapters afterwards."""
    torch.manual_seed(0)
    adapter = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(**SIZES)), adapter)
    if fault:
        model.get_submodule(FAULTY).scaling["default"] *= 2
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    tokens = torch.randint(0, 32, (2, 6))
    losses = []
    run = tensorprobe.capture(model, dump_path, task="tensor") if dump_path else None
    if run is not None:
        run.__enter__()
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        losses.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()
        if run is not None:
            run.step()
    if run is not None:
        run.__exit__(None, None, None)
    return [*losses, *(weight.detach().clone() for weight in weights)]


def test_the_losses_and_the_adapters_are_those_without_a_capture() -> None:
    assert all(map(torch.equal, train(None), train("dump")))


@pytest.mark.parametrize("fault", [False, True])
def test_an_adapter_that_is_scaled_wrongly_is_found(fault: bool) -> None:
    train("reference")
    train("candidate", fault=fault)
    comparison = tensorprobe.compare("reference", "candidate")
    assert bool(comparison) is not fault
    assert (f"in module {FAULTY}" in comparison.verdict.headline) is fault, comparison.verdict.headline
