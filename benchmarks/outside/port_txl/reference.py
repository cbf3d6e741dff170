"""Transformer-XL language model: relative positions with the shift trick, a memory of the segment before, tied softmax."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe

VOCAB, DIM, HEADS, HEAD, INNER, LAYERS, LENGTH, MEMORY, BATCH = 29, 16, 2, 6, 24, 2, 7, 5, 3


class RelAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv_net = nn.Linear(DIM, 3 * HEADS * HEAD, bias=False)
        self.r_net = nn.Linear(DIM, HEADS * HEAD, bias=False)
        self.o_net = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(HEADS, HEAD))
        self.r_r_bias = nn.Parameter(torch.zeros(HEADS, HEAD))
        self.norm = nn.LayerNorm(DIM)

    @staticmethod
    def rel_shift(x):
        """(q, k, batch, head): row i moves i places to the left."""
        pad = x.new_zeros((x.size(0), 1) + x.shape[2:])
        padded = torch.cat([pad, x], dim=1)
        return padded.view((x.size(1) + 1, x.size(0)) + x.shape[2:])[1:].view_as(x)

    def forward(self, w, r, mask, mem):
        qlen, bsz = w.shape[:2]
        heads = self.qkv_net(torch.cat([mem, w], 0))
        q, k, v = torch.chunk(heads, 3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, HEADS, HEAD)
        k = k.view(-1, bsz, HEADS, HEAD)
        v = v.view(-1, bsz, HEADS, HEAD)
        r = self.r_net(r).view(-1, HEADS, HEAD)
        content = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        position = self.rel_shift(torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r))
        score = (content + position).mul_(1 / HEAD**0.5)
        score = score.float().masked_fill(mask[:, :, None, None], float("-inf"))
        prob = F.softmax(score, dim=1)
        out = torch.einsum("ijbn,jbnd->ibnd", prob, v).reshape(qlen, bsz, HEADS * HEAD)
        return self.norm(w + self.o_net(out))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.Sequential(nn.Linear(DIM, INNER), nn.ReLU(inplace=True), nn.Linear(INNER, DIM))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        return self.norm(x + self.core(x))


class TransformerXL(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.attn = nn.ModuleList(RelAttention() for _ in range(LAYERS))
        self.ff = nn.ModuleList(FeedForward() for _ in range(LAYERS))
        self.out_bias = nn.Parameter(torch.zeros(VOCAB))
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0.0, DIM, 2.0) / DIM), persistent=False)

    def forward(self, words, mems):
        x = self.embed(words) * DIM**0.5
        mlen, qlen = mems[0].size(0), words.size(0)
        klen = mlen + qlen
        mask = torch.triu(torch.ones(qlen, klen), diagonal=1 + mlen).bool()
        pos_seq = torch.arange(klen - 1, -1, -1.0)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        r = torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)
        new_mems = []
        for attn, ff, mem in zip(self.attn, self.ff, mems):
            new_mems.append(torch.cat([mem, x], 0)[-MEMORY:].detach())
            x = ff(attn(x, r, mask, mem))
        return F.linear(x, self.embed.weight, self.out_bias), new_mems


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if "norm.weight" in name:
        value = 1 + 0.2 * value
    elif len(shape) == 1 or "_bias" in name:
        value = 0.2 * value
    else:
        value = value / np.sqrt(shape[-1])
    return value.astype(np.float32)


def main():
    net = TransformerXL()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-6)
    text = torch.from_numpy(np.random.RandomState(17).randint(0, VOCAB, (64, BATCH)))
    mems = [torch.zeros(0, BATCH, DIM) for _ in range(LAYERS)]
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            optimizer.zero_grad()
            total = 0.0
            for segment in range(2):  # two segments a step, the second one remembers the first
                start = (2 * step + segment) * LENGTH
                data, target = text[start : start + LENGTH], text[start + 1 : start + LENGTH + 1]
                logits, mems = net(data, mems)
                total = total + F.cross_entropy(logits.view(-1, VOCAB), target.reshape(-1))
            loss = total / 2
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            optimizer.step()
            run.step()
            print(f"step {step} loss {loss.item():.8f} w {sum(p.detach().double().pow(2).sum() for p in net.parameters()):.8f}")


if __name__ == "__main__":
    main()
