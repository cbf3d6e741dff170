"""The same fine-tuning for a machine with little memory: checkpointing, micro-batches, SDPA and a fused optimizer."""
import os
import sys
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import ctc_loss
from transformers import Wav2Vec2Config, Wav2Vec2Model

import tensorprobe

BLANK, CHARS = 0, 12
KERNELS, STRIDES = (10, 3, 2), (5, 2, 2)


@dataclass
class Args:
    micro: int = 2
    batch: int = 4
    lr: float = 3e-3
    decay: float = 0.05


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        off = dict.fromkeys(
            ["hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "layerdrop"]
            + ["mask_time_prob", "mask_feature_prob"],
            0.0,
        )
        shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
        conv = dict(conv_dim=(8, 8, 8), conv_kernel=KERNELS, conv_stride=STRIDES, feat_extract_norm="group")
        place = dict(num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)
        self.backbone = Wav2Vec2Model(Wav2Vec2Config(**shape, **conv, **place, **off, attn_implementation="sdpa"))
        self.backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.head = nn.Linear(16, CHARS)

    def frames(self, samples):
        for k, s in zip(KERNELS, STRIDES):
            samples = (samples - k) // s + 1
        return samples

    def forward(self, audio, samples):
        inside = torch.arange(audio.shape[1])[None] < samples[:, None]
        states = self.backbone(audio, attention_mask=inside.long()).last_hidden_state
        return self.head(states).log_softmax(-1), self.frames(samples)


def standardise(audio, samples):
    """zero mean and unit variance of each row, counting only what is inside"""
    inside = (torch.arange(audio.shape[1])[None] < samples[:, None]).float()
    n = inside.sum(1, keepdim=True)
    mean = (audio * inside).sum(1, keepdim=True) / n
    centred = (audio - mean) * inside
    var = centred.square().sum(1, keepdim=True) / n
    return centred * torch.rsqrt(var + 1e-7)


def sentence_losses(logp, frames, words, counts):
    each = ctc_loss(logp.transpose(0, 1), words, frames, counts, blank=BLANK, reduction="none")
    return each / counts


class Corpus:
    def __init__(self, step):
        rs = np.random.RandomState(1000 + step)
        self.rows = []
        for n in rs.permutation([300, 420, 360, 240]):
            t = np.arange(n) / 160.0
            tone = np.sin(2 * np.pi * rs.uniform(4, 30) * t) * rs.uniform(0.2, 2.0)
            wave = (tone + 0.3 * rs.standard_normal(n) + 0.1).astype(np.float32)
            self.rows.append((torch.from_numpy(wave), torch.from_numpy(rs.randint(1, CHARS, rs.randint(2, 5)))))

    def micro_batches(self, size):
        # the group norm of the first convolution sees the padding, so every micro-batch has the length of the batch
        longest = max(len(wave) for wave, _ in self.rows)
        for i in range(0, len(self.rows), size):
            part = self.rows[i : i + size]
            audio = torch.stack([nn.functional.pad(wave, (0, longest - len(wave))) for wave, _ in part])
            samples = torch.tensor([len(wave) for wave, _ in part])
            words = nn.utils.rnn.pad_sequence([w for _, w in part], batch_first=True, padding_value=BLANK)
            counts = torch.tensor([len(w) for _, w in part])
            yield standardise(audio, samples), samples, words, counts


@torch.no_grad()
def load(net):
    """parameters under the names of Wav2Vec2ForCTC"""
    for name, p in net.named_parameters():
        origin = name.replace("backbone.", "wav2vec2.").replace("head.", "lm_head.")
        x = np.random.RandomState(zlib.crc32(origin.encode())).standard_normal(tuple(p.shape)).astype(np.float32)
        if origin.endswith("bias"):
            p.copy_(torch.from_numpy(x) * 0.1)
        elif "layer_norm" in origin or origin.endswith("original0"):
            p.copy_(torch.from_numpy(x) * 0.1 + 1)
        else:
            p.copy_(torch.from_numpy(x) / float(np.prod(p.shape[1:])) ** 0.5)


def train_step(net, optimizer, corpus, args):
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for audio, samples, words, counts in corpus.micro_batches(args.micro):
        logp, frames = net(audio, samples)
        loss = sentence_losses(logp, frames, words, counts).sum() / args.batch
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def report(step, loss, net):
    square = lambda ts: torch.stack([t.double().square().sum() for t in ts]).sum().sqrt().item()
    grad, size = square(p.grad for p in net.parameters()), square(p.detach() for p in net.parameters())
    print(f"step {step} loss {loss:.8f} grad {grad:.8f} weights {size:.8f}")


if __name__ == "__main__":
    args = Args()
    net = Recogniser()
    load(net)
    net.train()
    adamw = torch.optim.AdamW(net.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=args.decay, fused=True)
    kind = dict(level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    with tensorprobe.capture(net, sys.argv[1], **kind) as run:
        for step in range(int(os.environ.get("STEPS", "2"))):
            loss = train_step(net, adamw, Corpus(step), args)
            report(step, loss, net)
            run.step()
