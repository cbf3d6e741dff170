# Command-R without transformers: fused qkv, fused gate/up, complex RoPE, SDPA.
import math, os, sys
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger

args = SimpleNamespace(
    vocab=48, dim=32, ffn=56, layers=2, heads=4, kv_heads=2, logit_scale=0.25, eps=1e-5,
    rope_theta=500000.0, max_len=64,
)


def precompute_freqs_cis(head_dim, end, theta):
    freqs = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rope(x, freqs_cis):
    # x: b t h d, neighbours are a pair (as in the original, not as in HF Llama)
    xc = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    xc = xc * freqs_cis[None, : x.shape[1], None]
    return torch.view_as_real(xc).flatten(-2).type_as(x)


class Norm(nn.Module):
    """layer norm without bias; the statistics in float32, over the last dimension only"""

    def __init__(self, *shape, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*shape))
        self.eps = eps

    def forward(self, x):
        y = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        return (y * self.weight.float()).type_as(x)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.nh, self.nkv, self.hd = a.heads, a.kv_heads, a.dim // a.heads
        self.wqkv = nn.Linear(a.dim, (self.nh + 2 * self.nkv) * self.hd, bias=False)
        self.wo = nn.Linear(self.nh * self.hd, a.dim, bias=False)
        self.q_norm = Norm(self.nh, self.hd, eps=a.eps)
        self.k_norm = Norm(self.nkv, self.hd, eps=a.eps)

    def forward(self, x, freqs_cis, mask):
        b, t, _ = x.shape
        qkv = self.wqkv(x).view(b, t, -1, self.hd)
        q, k, v = qkv.split([self.nh, self.nkv, self.nkv], dim=2)
        q = apply_rope(self.q_norm(q), freqs_cis)
        k = apply_rope(self.k_norm(k), freqs_cis)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        groups = self.nh // self.nkv
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.w13 = nn.Linear(a.dim, 2 * a.ffn, bias=False)
        self.w2 = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.norm = Norm(a.dim, eps=a.eps)
        self.attn, self.ffn = Attention(a), FeedForward(a)

    def forward(self, x, freqs_cis, mask):
        h = self.norm(x)  # one norm, both branches from it
        return x + self.attn(h, freqs_cis, mask) + self.ffn(h)


class CommandR(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.tok = nn.Embedding(a.vocab, a.dim, padding_idx=0)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.out_norm = Norm(a.dim, eps=a.eps)
        self.freqs_cis = precompute_freqs_cis(a.dim // a.heads, a.max_len, a.rope_theta)

    def forward(self, ids, keep):
        t = ids.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool).tril() & keep[:, None, None, :]
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x, self.freqs_cis, mask)
        x = self.out_norm(x)
        return F.linear(x, self.tok.weight) * self.a.logit_scale


def convert(sd, layers):
    out = {"tok.weight": sd["model.embed_tokens.weight"], "out_norm.weight": sd["model.norm.weight"]}
    for i in range(layers):
        get = lambda n: sd[f"model.layers.{i}.{n}.weight"]
        out[f"blocks.{i}.norm.weight"] = get("input_layernorm")
        out[f"blocks.{i}.attn.wqkv.weight"] = torch.cat([get(f"self_attn.{c}_proj") for c in "qkv"])
        out[f"blocks.{i}.attn.wo.weight"] = get("self_attn.o_proj")
        out[f"blocks.{i}.attn.q_norm.weight"] = get("self_attn.q_norm")
        out[f"blocks.{i}.attn.k_norm.weight"] = get("self_attn.k_norm")
        out[f"blocks.{i}.ffn.w13.weight"] = torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")])
        out[f"blocks.{i}.ffn.w2.weight"] = get("mlp.down_proj")
    return out


def get_batch(step, n=4):
    rng = np.random.default_rng(100 + step)
    lens = rng.integers(5, 13, n)
    ids = np.zeros((n, lens.max()), dtype=np.int64)
    for i, l in enumerate(lens):
        ids[i, :l] = np.concatenate([[1], rng.integers(3, args.vocab, l - 1)])
    keep = np.arange(lens.max())[None] < lens[:, None]
    return torch.from_numpy(ids), torch.from_numpy(keep)


def lm_loss(logits, ids, keep):
    per_token = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
    weight = keep[:, 1:].float()
    return (per_token * weight).sum() / weight.sum()


def main():
    model = CommandR(args)
    model.load_state_dict(convert(torch.load(os.path.join(os.environ["WEIGHTS"], "command_r.pt")), args.layers))
    model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    matrices = [p for n, p in model.named_parameters() if "norm" not in n]
    opt = torch.optim.AdamW(
        [dict(params=matrices), dict(params=norms, weight_decay=0.0)], lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1
    )
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        ids, keep = get_batch(step)
        dbg.start(model)
        loss = lm_loss(model(ids, keep), ids, keep)
        loss.backward()
        opt.step()
        dbg.stop()
        g = math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in model.parameters()))
        w = math.sqrt(sum(p.detach().double().pow(2).sum().item() for p in model.parameters()))
        print(f"step {step} loss {loss.item():.8f} grad {g:.8f} params {w:.8f}")
        opt.zero_grad()
        dbg.step()


if __name__ == "__main__":
    main()
