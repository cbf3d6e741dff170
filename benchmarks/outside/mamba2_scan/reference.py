"""Fine-tune a (tiny) Mamba2 language model with transformers.

usage: python reference.py DUMP_FOLDER      (weights go to $WEIGHTS for the port)
"""
import os
import sys

import numpy as np
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from tensorprobe.pytorch import PrecisionDebugger

PAD = 0
LENGTHS = [11, 7, 9]  # real tokens per row, the rest is padding on the left


def make_batch(step, vocab=29, length=11):
    rng = np.random.default_rng(100 + step)
    ids = rng.integers(1, vocab, (len(LENGTHS), length))
    mask = np.zeros_like(ids)
    for row, n in enumerate(LENGTHS):
        ids[row, : length - n] = PAD
        mask[row, length - n :] = 1
    labels = np.where(mask == 1, ids, -100)
    return (torch.from_numpy(a) for a in (ids, mask, labels))


def build():
    config = Mamba2Config(
        vocab_size=29, hidden_size=16, num_heads=4, head_dim=8, expand=2, state_size=6, n_groups=2,
        num_hidden_layers=2, conv_kernel=4, chunk_size=4, pad_token_id=PAD, layer_norm_epsilon=1e-5, use_cache=False,
    )
    model = Mamba2ForCausalLM(config)
    # random weights that are not all the default initial values (A = 1..n, D = 1, norms = 1)
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.from_numpy(rng.standard_normal(p.shape).astype(np.float32))
            if name.endswith(("A_log", "dt_bias")):
                p.copy_(0.5 * noise)
            elif "norm" in name or name.endswith(".D"):
                p.copy_(1 + 0.2 * noise)
            elif p.ndim > 1:
                p.copy_(noise / p.shape[-1] ** 0.5)
            else:
                p.copy_(0.1 * noise)
    return model


def param_groups(model, weight_decay):
    decay, rest = [], []
    for name, p in model.named_parameters():
        (decay if p.ndim > 1 and "embed" not in name else rest).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def main(dump):
    model = build().train().to(getattr(torch, os.environ.get("DTYPE", "float32")))
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "mamba2.pt"))
    optimizer = torch.optim.AdamW(param_groups(model, 0.1), lr=2e-3, betas=(0.9, 0.95))
    debugger = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        ids, mask, labels = make_batch(step)
        debugger.start(model)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        debugger.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in model.parameters()) ** 0.5
        after = sum(p.detach().double().abs().sum() for p in model.parameters())
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {after:.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main(sys.argv[1])
