"""Fine-tune a (tiny, random) Command-R from transformers on padded sequences.

The baseline that the hand-written model in candidate.py has to reproduce.
"""
import os
import sys

import numpy as np
import torch
from transformers import CohereConfig, CohereForCausalLM

from tensorprobe.pytorch import PrecisionDebugger

LEVEL = os.environ.get("LEVEL", "L1")
TASK = os.environ.get("TASK", "tensor")
DTYPE = getattr(torch, os.environ.get("DTYPE", "float32"))
STEPS = int(os.environ.get("STEPS", "1"))
PAD = 0


def build_config():
    config = CohereConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_qk_norm=True,
        logit_scale=0.25,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    config._attn_implementation = "eager"
    return config


def randomize(model, seed=2024):
    """transformers' own init depends on the version, so draw the weights here"""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape)).astype(np.float32))
            if "norm" in name:
                parameter.copy_(1.0 + 0.15 * noise)
            elif "embed" in name:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(noise * parameter.shape[1] ** -0.5)


def collate(step, vocab, batch_size=4):
    rng = np.random.default_rng(100 + step)
    lengths = rng.integers(5, 13, batch_size)
    longest = int(lengths.max())
    ids = np.full((batch_size, longest), PAD)
    for row, length in enumerate(lengths):
        ids[row, 0] = 1
        ids[row, 1:length] = rng.integers(3, vocab, length - 1)
    ids = torch.from_numpy(ids)
    mask = (torch.arange(longest)[None] < torch.from_numpy(lengths)[:, None]).long()
    return ids, mask


def param_groups(model, weight_decay):
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        (no_decay if "norm" in name else decay).append(p)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def report(step, loss, model):
    grad = sum(p.grad.double().square().sum() for p in model.parameters()).sqrt()
    size = sum(p.detach().double().square().sum() for p in model.parameters()).sqrt()
    print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {size:.8f}")


def main(dump_folder):
    config = build_config()
    model = CohereForCausalLM(config)
    randomize(model)
    torch.save(model.state_dict(), os.path.join(os.environ["WEIGHTS"], "command_r.pt"))
    model = model.to(DTYPE).train()

    optimizer = torch.optim.AdamW(param_groups(model, 0.1), lr=2e-3, betas=(0.9, 0.95), eps=1e-8)
    debugger = PrecisionDebugger(dump_path=dump_folder, level=LEVEL, task=TASK)
    for step in range(STEPS):
        ids, mask = collate(step, config.vocab_size)
        labels = ids.masked_fill(mask == 0, -100)
        debugger.start(model)
        # the model shifts the labels by itself
        output = model(input_ids=ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        optimizer.step()
        debugger.stop()
        report(step, output.loss, model)
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main(sys.argv[1])
