"""LoRA on GPT-2 (transformers) for sequence classification, the way peft does it:
frozen Conv1D, adapters on q and v of `c_attn`, LoRA+ learning rates, gradient checkpointing."""
import os
import sys

import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification

from tensorprobe.pytorch import PrecisionDebugger

RANK = 4
ALPHA = 8
PAD_ID = 39


class LoraConv1D(nn.Module):
    """Adapter around GPT-2's `c_attn`; enable_lora says which of q, k, v get one."""

    def __init__(self, base_layer, r, lora_alpha, enable_lora=(True, False, True)):
        super().__init__()
        self.base_layer = base_layer
        self.enable_lora = enable_lora
        self.width = base_layer.nf // len(enable_lora)
        self.scaling = lora_alpha / r
        fan_in = base_layer.weight.shape[0]
        self.lora_A = nn.ModuleDict()
        self.lora_B = nn.ModuleDict()
        for part, on in zip("qkv", enable_lora):
            if on:
                self.lora_A[part] = nn.Linear(fan_in, r, bias=False)
                self.lora_B[part] = nn.Linear(r, self.width, bias=False)

    def forward(self, x):
        result = self.base_layer(x)
        deltas = []
        for part, on in zip("qkv", self.enable_lora):
            if on:
                deltas.append(self.lora_B[part](self.lora_A[part](x)) * self.scaling)
            else:
                deltas.append(x.new_zeros(*x.shape[:-1], self.width))
        return result + torch.cat(deltas, dim=-1)


def inject_adapters(model):
    for p in model.parameters():
        p.requires_grad = False
    for block in model.transformer.h:
        block.attn.c_attn = LoraConv1D(block.attn.c_attn, r=RANK, lora_alpha=ALPHA)
    model.score.requires_grad_(True)  # modules_to_save


def fill(model):
    rng = np.random.default_rng(77)
    with torch.no_grad():
        for name, p in model.named_parameters():
            z = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype("float32"))
            if "ln_" in name:
                p.copy_(0.1 * z + (1.0 if name.endswith("weight") else 0.0))
            elif "lora_B" in name:
                p.copy_(0.1 * z)  # as after some steps, at the start they would be zero
            elif name.endswith("bias"):
                p.copy_(0.05 * z)
            elif "wte" in name or "wpe" in name:
                p.copy_(0.3 * z)
            else:
                p.copy_(z / 24 ** 0.5)


def make_optimizer(model, lr=1e-3, loraplus_lr_ratio=16):
    fast, slow = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (fast if "lora_B" in name else slow).append(p)
    return torch.optim.AdamW(
        [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * loraplus_lr_ratio}], weight_decay=0.01
    )


def batch(step, n=4, longest=11):
    rng = np.random.default_rng(500 + step)
    ids = torch.full((n, longest), PAD_ID)
    mask = torch.zeros(n, longest, dtype=torch.long)
    for i in range(n):
        length = int(rng.integers(4, longest + 1))
        ids[i, :length] = torch.from_numpy(rng.integers(0, PAD_ID, length))
        mask[i, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.from_numpy(rng.integers(0, 3, n))}


def main():
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=2, n_head=3, num_labels=3, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=PAD_ID, use_cache=False)
    config._attn_implementation = "sdpa"
    model = GPT2ForSequenceClassification(config)
    inject_adapters(model)
    fill(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "gpt2_lora.pt"))
    model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = make_optimizer(model)
    debugger = PrecisionDebugger(
        dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")
    )
    for step in range(int(os.environ.get("STEPS", 2))):
        inputs = batch(step)
        debugger.start(model)
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        debugger.stop()
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = sum(p.grad.double().pow(2).sum() for p in trained if p.grad is not None) ** 0.5
        print(f"step {step} loss {loss.item():.8f} grad {gradients:.8f} "
              f"params {sum(p.detach().double().pow(2).sum() for p in trained) ** 0.5:.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
