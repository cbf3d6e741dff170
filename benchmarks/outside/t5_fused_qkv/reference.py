"""Fine-tuning a small T5 v1.1 from transformers: padded batches, labels with -100, AdamW and gradient clipping."""
import os
import sys
import zlib

import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration

import tensorprobe

VOCAB, SRC, TGT, BATCH = 44, 13, 9, 4


def build():
    config = T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=6,
        d_ff=20,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )
    model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(p.shape)).astype(np.float32)
            if name.endswith("layer_norm.weight"):
                x = 1 + 0.1 * x
            elif name == "shared.weight" or "relative_attention_bias" in name:
                x = 0.8 * x
            else:
                x = x / p.shape[1] ** 0.5
            p.copy_(torch.from_numpy(x))
    return model.train()


def batch(step):
    rs = np.random.RandomState(100 + step)
    ids = rs.randint(2, VOCAB, (BATCH, SRC))
    labels = rs.randint(2, VOCAB, (BATCH, TGT))
    src_len = rs.randint(6, SRC + 1, BATCH)
    tgt_len = rs.randint(4, TGT + 1, BATCH)
    mask = (np.arange(SRC)[None] < src_len[:, None]).astype(np.int64)
    ids = ids * mask
    for row, n in enumerate(tgt_len):
        labels[row, n - 1] = 1
        labels[row, n:] = -100
    return {k: torch.from_numpy(v) for k, v in dict(input_ids=ids, attention_mask=mask, labels=labels).items()}


def total_norm(tensors):
    return float(sum(t.detach().double().pow(2).sum() for t in tensors) ** 0.5)


def main(dump):
    model = build()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=4e-3,
        betas=(0.9, 0.95),
        foreach=False,
    )
    level, task = os.environ.get("LEVEL", "L1"), os.environ.get("TASK", "tensor")
    with tensorprobe.capture(model, dump, level=level, task=task) as run:
        for step in range(int(os.environ.get("STEPS", "2"))):
            optimizer.zero_grad()
            loss = model(**batch(step)).loss
            loss.backward()
            grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            print(f"step {step} loss {loss.item():.8f} grad {float(grad):.8f} weights {total_norm(model.parameters()):.8f}")
            run.step()


if __name__ == "__main__":
    main(sys.argv[1])
