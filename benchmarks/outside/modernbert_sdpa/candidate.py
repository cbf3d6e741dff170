#!/usr/bin/env python
# Same finetuning, for the small cards: our own SDPA attention and masks, gradient checkpointing, and the
# decoder is run on the masked positions only.
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, ModernBertConfig, ModernBertForMaskedLM

from tensorprobe.pytorch import PrecisionDebugger

MASK_ID, PAD_ID, VOCAB = 3, 0, 40
WINDOW = 4


def lean_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **unused):
    """what transformers calls for config._attn_implementation == 'lean'"""
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("lean", lean_attention)


def build_masks(attend, window):
    """True where a query may look. Every row keeps itself, so that padding rows do not become NaN."""
    n = attend.shape[1]
    position = torch.arange(n)
    distance = (position[:, None] - position[None, :]).abs()
    real = attend.bool()[:, None, None, :]
    near = (distance <= window // 2)[None, None]
    everywhere = real.expand(-1, 1, n, n)
    local = near & real
    self_ok = torch.eye(n, dtype=torch.bool)[None, None] & ~attend.bool()[:, None, :, None]
    return {"full_attention": everywhere, "sliding_attention": local | self_ok}


class Trainer:
    def __init__(self, folder):
        dtype = getattr(torch, os.environ.get("DTYPE", "float32"))
        config = ModernBertConfig(
            vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
            max_position_embeddings=64, local_attention=WINDOW, global_attn_every_n_layers=2, pad_token_id=PAD_ID,
            cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2, sparse_prediction=True,
        )
        config._attn_implementation = "lean"
        self.net = ModernBertForMaskedLM(config)
        self.net.load_state_dict(torch.load(os.environ["WEIGHTS"] + "/modernbert.pt"))
        self.net.to(dtype).train()
        self.net.model.embeddings.requires_grad_(False)
        self.net.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.groups(1e-3, 0.8), weight_decay=0.01)
        self.debugger = PrecisionDebugger(
            dump_path=folder, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))

    def groups(self, lr, decay):
        top = len(self.net.model.layers) - 1
        groups = {}
        for name, p in self.net.named_parameters():
            if not p.requires_grad:
                continue
            depth = int(name.split(".")[2]) if ".layers." in name else top
            groups.setdefault(depth, {"params": [], "lr": lr * decay ** (top - depth)})["params"].append(p)
        return list(groups.values())

    def data(self, step):
        rng = np.random.default_rng([11, step])
        ids = torch.from_numpy(rng.integers(4, VOCAB, size=(4, 12)))
        attend = torch.arange(12)[None] < torch.tensor([12, 8, 10, 5])[:, None]
        chosen = torch.from_numpy(rng.random((4, 12)) < 0.25) & attend
        chosen[:, 1] = True
        labels = ids.masked_fill(~chosen, -100)
        ids = ids.masked_fill(chosen, MASK_ID).masked_fill(~attend, PAD_ID)
        return ids, attend, labels

    def step(self, step):
        ids, attend, labels = self.data(step)
        self.debugger.start(self.net)
        masks = build_masks(attend, WINDOW)
        loss = self.net(input_ids=ids, attention_mask=masks, labels=labels).loss
        loss.backward()
        self.optimizer.step()
        self.debugger.stop()
        grads = [p.grad.double().norm() for p in self.net.parameters() if p.grad is not None]
        total = sum(p.detach().double().abs().sum().item() for p in self.net.parameters())
        print(f"step {step} loss {loss.item():.8f} grad {torch.stack(grads).norm().item():.8f} {len(grads)} params {total:.8f}")
        self.optimizer.zero_grad()
        self.debugger.step()


if __name__ == "__main__":
    trainer = Trainer(sys.argv[1])
    for step in range(int(os.environ.get("STEPS", 1))):
        trainer.step(step)
