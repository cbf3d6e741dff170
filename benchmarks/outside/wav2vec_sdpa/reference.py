"""CTC fine-tuning of a small wav2vec 2.0: the whole batch at once, eager attention."""
import os
import sys
import zlib

import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

import tensorprobe


def config():
    return Wav2Vec2Config(
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        conv_dim=(8, 8, 8),
        conv_kernel=(10, 3, 2),
        conv_stride=(5, 2, 2),
        conv_bias=False,
        feat_extract_norm="group",
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
        mask_time_prob=0.0,
        mask_feature_prob=0.0,
        ctc_loss_reduction="mean",
        pad_token_id=0,
        attn_implementation="eager",
    )


def init(model):
    for name, p in model.named_parameters():
        x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(p.shape)).astype(np.float32)
        if name.endswith("bias"):
            x = 0.1 * x
        elif "layer_norm" in name or name.endswith("original0"):
            x = 1 + 0.1 * x
        else:
            x = x / np.prod(x.shape[1:]) ** 0.5
        p.data = torch.from_numpy(x.astype(np.float32))


def utterances(step, count=4):
    """raw audio of unequal length and its transcript"""
    rs = np.random.RandomState(1000 + step)
    for n in rs.permutation([300, 420, 360, 240])[:count]:
        t = np.arange(n) / 160.0
        wave = np.sin(2 * np.pi * rs.uniform(4, 30) * t) * rs.uniform(0.2, 2.0) + 0.3 * rs.standard_normal(n) + 0.1
        yield wave.astype(np.float32), rs.randint(1, 12, rs.randint(2, 5))


def normalise(wave):
    return (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)


def collate(pairs):
    waves, words = zip(*pairs)
    length, width = max(map(len, waves)), max(map(len, words))
    values = np.zeros((len(waves), length), np.float32)
    mask = np.zeros((len(waves), length), np.int64)
    labels = np.full((len(waves), width), -100, np.int64)
    for i, (wave, word) in enumerate(zip(waves, words)):
        values[i, : len(wave)] = normalise(wave)
        mask[i, : len(wave)] = 1
        labels[i, : len(word)] = word
    return torch.from_numpy(values), torch.from_numpy(mask), torch.from_numpy(labels)


def main():
    model = Wav2Vec2ForCTC(config())
    init(model)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.05, foreach=False, fused=False
    )
    with tensorprobe.capture(
        model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")
    ) as run:
        for step in range(int(os.environ.get("STEPS", "2"))):
            values, mask, labels = collate(utterances(step))
            out = model(input_values=values, attention_mask=mask, labels=labels)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            grad = sum(p.grad.double().norm() ** 2 for p in model.parameters()) ** 0.5
            size = sum(p.detach().double().norm() ** 2 for p in model.parameters()) ** 0.5
            print(f"step {step} loss {out.loss.item():.8f} grad {grad:.8f} weights {size:.8f}")
            run.step()


if __name__ == "__main__":
    main()
