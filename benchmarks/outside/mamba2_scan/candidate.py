"""minimal mamba2: no kernels, no chunks, just the recurrence. Loads a transformers checkpoint."""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return (x32 / (x32.square().mean(-1, keepdim=True) + self.eps).sqrt()).type_as(x) * self.w


class Mixer(nn.Module):
    def __init__(self, d=16, heads=4, headdim=8, dstate=6, groups=2, dconv=4):
        super().__init__()
        self.heads, self.headdim, self.dstate, self.groups, self.dconv = heads, headdim, dstate, groups, dconv
        inner = heads * headdim
        # in_proj of the checkpoint, taken apart
        self.z_proj = nn.Linear(d, inner, bias=False)
        self.xbc_proj = nn.Linear(d, inner + 2 * groups * dstate, bias=False)
        self.dt_proj = nn.Linear(d, heads)
        self.taps = nn.Parameter(torch.zeros(dconv, inner + 2 * groups * dstate))  # depthwise kernel, time first
        self.tap_bias = nn.Parameter(torch.zeros(inner + 2 * groups * dstate))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.gated_norm = RMSNorm(inner)
        self.o_proj = nn.Linear(inner, d, bias=False)

    def short_conv(self, u):
        padded = F.pad(u, (0, 0, self.dconv - 1, 0))
        out = self.tap_bias
        for k in range(self.dconv):
            out = out + padded[:, k : k + u.shape[1]] * self.taps[k]
        return F.silu(out)

    def forward(self, u, keep):
        b, t, _ = u.shape
        u = u * keep[..., None].type_as(u)
        z = self.z_proj(u)
        xbc = self.short_conv(self.xbc_proj(u)) * keep[..., None].type_as(u)
        dt = F.softplus(self.dt_proj(u))
        inner = self.heads * self.headdim
        x = xbc[..., :inner].view(b, t, self.heads, self.headdim)
        B, C = xbc[..., inner:].reshape(b, t, 2, self.groups, self.dstate).unbind(2)
        B = B.repeat_interleave(self.heads // self.groups, dim=2)
        C = C.repeat_interleave(self.heads // self.groups, dim=2)
        A = -self.A_log.float().exp()

        h = u.new_zeros(b, self.heads, self.headdim, self.dstate)
        ys = []
        for i in range(t):
            decay = torch.exp(A * dt[:, i])[..., None, None]
            h = decay * h + (dt[:, i, :, None] * x[:, i]).unsqueeze(-1) * B[:, i].unsqueeze(-2)
            ys.append((h * C[:, i].unsqueeze(-2)).sum(-1))
        y = torch.stack(ys, 1) + self.D[:, None] * x
        y = y.reshape(b, t, inner)
        y = y * F.silu(z)
        y = self.gated_norm(y)
        return self.o_proj(y)


class Mamba(nn.Module):
    def __init__(self, vocab=29, d=16, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pre = nn.ModuleList([RMSNorm(d) for _ in range(layers)])
        self.mix = nn.ModuleList([Mixer(d) for _ in range(layers)])
        self.final = RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, keep):
        x = self.emb(ids)
        for norm, mixer in zip(self.pre, self.mix):
            x = x + mixer(norm(x), keep)
        return self.head(self.final(x))


def load_hf(model, sd):
    """transformers names -> ours"""
    new = {"emb.weight": sd["backbone.embeddings.weight"], "final.w": sd["backbone.norm_f.weight"], "head.weight": sd["lm_head.weight"]}
    for i, mixer in enumerate(model.mix):
        src = f"backbone.layers.{i}.mixer."
        inner, conv = mixer.heads * mixer.headdim, mixer.taps.shape[1]
        z, xbc, dt = sd[src + "in_proj.weight"].split([inner, conv, mixer.heads])
        new[f"pre.{i}.w"] = sd[f"backbone.layers.{i}.norm.weight"]
        new.update({f"mix.{i}.{k}": v for k, v in {
            "z_proj.weight": z, "xbc_proj.weight": xbc, "dt_proj.weight": dt, "dt_proj.bias": sd[src + "dt_bias"],
            "taps": sd[src + "conv1d.weight"].squeeze(1).t(), "tap_bias": sd[src + "conv1d.bias"],
            "A_log": sd[src + "A_log"], "D": sd[src + "D"], "gated_norm.w": sd[src + "norm.weight"],
            "o_proj.weight": sd[src + "out_proj.weight"]}.items()})
    model.load_state_dict(new)


def batch(step, vocab=29, length=11, lengths=(11, 7, 9)):
    rng = np.random.default_rng(100 + step)
    ids = torch.from_numpy(rng.integers(1, vocab, (len(lengths), length)))
    keep = torch.arange(length) >= length - torch.tensor(lengths)[:, None]
    return ids.masked_fill(~keep, 0), keep


NO_DECAY = ("emb.weight", "bias", "A_log", ".D", ".w")

if __name__ == "__main__":
    model = Mamba()
    load_hf(model, torch.load(os.path.join(os.environ["WEIGHTS"], "mamba2.pt")))
    model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
    skip = lambda n: n.endswith(NO_DECAY)
    opt = torch.optim.AdamW([{"params": [p for n, p in model.named_parameters() if not skip(n)], "weight_decay": 0.1},
                             {"params": [p for n, p in model.named_parameters() if skip(n)], "weight_decay": 0.0}],
                            lr=2e-3, betas=(0.9, 0.95))
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "1"))):
        ids, keep = batch(step)
        dbg.start(model)
        logits = model(ids, keep)
        target = ids.masked_fill(~keep, -100)[:, 1:]
        logp = logits[:, :-1].float().log_softmax(-1)
        valid = target != -100
        nll = -logp.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        loss = (nll * valid).sum() / valid.sum()
        loss.backward()
        opt.step()
        dbg.stop()
        grad = sum(p.grad.double().norm() ** 2 for p in model.parameters()) ** 0.5
        after = sum(p.detach().double().abs().sum() for p in model.parameters())
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} params {after:.8f}")
        opt.zero_grad()
        dbg.step()
