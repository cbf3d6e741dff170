#!/usr/bin/env python
# Masked-LM finetuning of ModernBERT, the plain way: eager attention, everything stored for the backward.
# The embeddings (and the tied decoder) stay frozen, as we did for the domain adaptation runs.
import os, sys
import numpy as np
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM
from tensorprobe.pytorch import PrecisionDebugger

MASK_ID, PAD_ID, VOCAB = 3, 0, 40


def get_config():
    return ModernBertConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=64, local_attention=4, global_attn_every_n_layers=2,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
        pad_token_id=PAD_ID, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
        norm_eps=1e-5, classifier_activation="gelu", attn_implementation="eager",
    )


def corrupt(step, batch=4, length=12):
    """token ids with 25 % masked, the padding mask, and the labels"""
    rng = np.random.default_rng([11, step])
    ids = rng.integers(4, VOCAB, size=(batch, length))
    lengths = np.array([12, 8, 10, 5])
    attend = (np.arange(length)[None] < lengths[:, None]).astype(np.int64)
    chosen = (rng.random((batch, length)) < 0.25) & (attend == 1)
    chosen[:, 1] = True
    labels = np.where(chosen, ids, -100)
    ids = np.where(chosen, MASK_ID, ids) * attend
    return dict(input_ids=torch.tensor(ids), attention_mask=torch.tensor(attend), labels=torch.tensor(labels))


def randomise(model):
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.tensor(rng.standard_normal(tuple(p.shape)), dtype=torch.float32)
            p.copy_(1 + 0.3 * x if "norm" in name else (0.35 * x if p.ndim == 2 else 0.1 * x))


def layerwise_groups(model, lr, decay):
    """The top layer learns with lr, each one below with decay times that of the layer above."""
    layers = list(model.model.layers)
    groups = [{"params": [p for n, p in model.named_parameters() if p.requires_grad and ".layers." not in n], "lr": lr}]
    for depth, layer in enumerate(layers):
        groups.append({"params": list(layer.parameters()), "lr": lr * decay ** (len(layers) - 1 - depth)})
    return groups


def main():
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(get_config())
    randomise(model)
    torch.save(model.state_dict(), os.environ["WEIGHTS"] + "/modernbert.pt")
    model = model.to(getattr(torch, os.environ.get("DTYPE", "float32"))).train()
    model.model.embeddings.requires_grad_(False)

    optim = torch.optim.AdamW(layerwise_groups(model, 1e-3, 0.8), weight_decay=0.01)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 1))):
        batch = corrupt(step)
        debugger.start(model)
        out = model(**batch)
        out.loss.backward()
        optim.step()
        debugger.stop()
        grads = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
        print("step", step, "loss %.8f" % out.loss.item(), "grad %.8f" % torch.stack(grads).norm().item(), len(grads),
              "params %.8f" % sum(p.detach().double().abs().sum().item() for p in model.parameters()))
        optim.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
