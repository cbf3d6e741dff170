"""Low-rank adaptation of a small BART, weights merged on the fly: x @ (W + s B A)^T + b."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import BartConfig, BartForConditionalGeneration

import tensorprobe

RANK, ALPHA, TARGETS = 3, 12.0, ("q_proj", "v_proj", "fc1")
LR, RATIO = 5e-3, 4.0


def drawn(name, shape, scale):
    rs = np.random.RandomState(zlib.crc32(name.encode()))
    return torch.from_numpy((scale * rs.standard_normal(tuple(shape))).astype(np.float32))


class LoRALinear(nn.Module):
    def __init__(self, base, name):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(drawn(name + ".lora_A", (RANK, base.in_features), base.in_features**-0.5))
        # B of an adapter that was trained before, so not zero
        self.lora_B = nn.Parameter(drawn(name + ".lora_B", (base.out_features, RANK), 0.1))
        self.scaling = ALPHA / RANK

    def forward(self, x):
        weight = self.base.weight + self.scaling * (self.lora_B @ self.lora_A)
        return F.linear(x, weight, self.base.bias)


def base_model():
    config = BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=20,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        scale_embedding=True,
        use_cache=False,
        attn_implementation="eager",
    )
    model = BartForConditionalGeneration(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.copy_(drawn(name, p.shape, 0.1))
            elif p.ndim == 1:
                p.copy_(1 + drawn(name, p.shape, 0.1))
            elif "embed" in name or "shared" in name:
                p.copy_(drawn(name, p.shape, 0.3))
            else:
                p.copy_(drawn(name, p.shape, p.shape[1] ** -0.5))
    return model


def add_lora(model):
    for p in model.parameters():
        p.requires_grad_(False)
    wrapped = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.split(".")[-1] in TARGETS]
    for name, module in wrapped:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LoRALinear(module, name))
    return model


def batch(step, rows=4, source=11, target=8):
    """bos 0, pad 1, eos 2"""
    rs = np.random.RandomState(77 + step)
    ids = np.full((rows, source), 1)
    labels = np.full((rows, target), -100)
    for r in range(rows):
        n, m = rs.randint(5, source + 1), rs.randint(4, target + 1)
        ids[r, :n] = np.concatenate([[0], rs.randint(3, 50, n - 2), [2]])
        labels[r, :m] = np.concatenate([[0], rs.randint(3, 50, m - 2), [2]])
    ids, labels = torch.from_numpy(ids), torch.from_numpy(labels)
    return {"input_ids": ids, "attention_mask": ids.ne(1).long(), "labels": labels}


def main(dump):
    model = add_lora(base_model()).train()
    params = dict((n, p) for n, p in model.named_parameters() if p.requires_grad)
    # LoRA+: B learns faster than A
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in params.items() if n.endswith("lora_A")], "lr": LR},
            {"params": [p for n, p in params.items() if n.endswith("lora_B")], "lr": LR * RATIO},
        ],
        eps=1e-7,
        weight_decay=0.0,
    )
    with tensorprobe.capture(
        model, dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")
    ) as run:
        for step in range(int(os.environ.get("STEPS", "2"))):
            loss = model(**batch(step)).loss
            loss.backward()
            grad = sum(float(p.grad.double().square().sum()) for p in params.values()) ** 0.5
            optimizer.step()
            optimizer.zero_grad()
            size = sum(float(p.detach().double().square().sum()) for p in params.values()) ** 0.5
            print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} weights {size:.8f}")
            run.step()


if __name__ == "__main__":
    main(sys.argv[1])
