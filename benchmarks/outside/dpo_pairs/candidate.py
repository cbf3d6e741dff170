# Our DPO after the rewrite: own pre-norm blocks, chosen and rejected in separate forwards,
# log-probs through cross_entropy(ignore_index), loss as BCE with soft targets.
import copy
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

IGNORE = -100
VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 40, 24, 3, 2, 24


class PreNormBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_attn = nn.LayerNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ln_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def split(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x):
        h = self.ln_attn(x)
        y = F.scaled_dot_product_attention(self.split(self.wq(h)), self.split(self.wk(h)), self.split(self.wv(h)), is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_mlp(x))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.wpe = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[PreNormBlock() for _ in range(LAYERS)])
        self.ln = nn.LayerNorm(WIDTH)
        self.unembed = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        h = self.wte(ids) + self.wpe[: ids.size(1)]
        return self.unembed(self.ln(self.blocks(h)))

    @torch.no_grad()
    def load_sft(self, path):
        sd = torch.load(path)
        self.wte.weight.copy_(sd["embed.weight"])
        self.wpe.copy_(sd["position.weight"])
        self.unembed.weight.copy_(sd["head.weight"])
        pairs = [(self.ln, "body.norm")]
        for i, b in enumerate(self.blocks):
            pre = f"body.layers.{i}."
            pairs += [(b.ln_attn, pre + "norm1"), (b.ln_mlp, pre + "norm2"), (b.wo, pre + "self_attn.out_proj"),
                      (b.mlp[0], pre + "linear1"), (b.mlp[2], pre + "linear2")]
            for lin, w, bias in zip((b.wq, b.wk, b.wv), sd[pre + "self_attn.in_proj_weight"].chunk(3), sd[pre + "self_attn.in_proj_bias"].chunk(3)):
                lin.weight.copy_(w)
                lin.bias.copy_(bias)
        for module, name in pairs:
            module.weight.copy_(sd[name + ".weight"])
            module.bias.copy_(sd[name + ".bias"])


def pad_side(prompts, answers):
    """targets are shifted here already: target[t] is what the model has to say after token t"""
    n, longest = len(prompts), max(len(p) + len(a) for p, a in zip(prompts, answers))
    tokens = np.zeros((n, longest), dtype=np.int64)
    targets = np.full((n, longest), IGNORE, dtype=np.int64)
    for i, (p, a) in enumerate(zip(prompts, answers)):
        full = np.concatenate([p, a])
        tokens[i, : len(full)] = full
        first = len(p) - 1
        targets[i, first : len(full) - 1] = full[first + 1 :]
    return torch.from_numpy(tokens), torch.from_numpy(targets)


def load_batch(step, n=3):
    g = np.random.default_rng(3000 + step)
    prompts, good, bad = [], [], []
    for _ in range(n):
        prompts.append(g.integers(1, VOCAB, g.integers(3, 7)))
        good.append(g.integers(1, VOCAB, g.integers(3, 12)))
        bad.append(g.integers(1, VOCAB, g.integers(3, 12)))
    return pad_side(prompts, good), pad_side(prompts, bad)


def sequence_logp(model, tokens, targets):
    ce = F.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=IGNORE, reduction="none")
    return -ce.sum(dim=1)


class DPOTrainer:
    def __init__(self, policy, beta=0.3, smoothing=0.1, rpo_alpha=0.2, clip=0.5):
        self.policy = policy
        self.frozen = copy.deepcopy(policy)
        self.beta, self.smoothing, self.rpo_alpha, self.clip = beta, smoothing, rpo_alpha, clip
        self.opt = torch.optim.RMSprop(policy.parameters(), lr=5e-3, alpha=0.99, eps=1e-6)

    def compute_loss(self, good, bad):
        logp_good = sequence_logp(self.policy, *good)
        logp_bad = sequence_logp(self.policy, *bad)
        with torch.no_grad():
            base_good = sequence_logp(self.frozen, *good)
            base_bad = sequence_logp(self.frozen, *bad)
        reward_good = self.beta * (logp_good - base_good)
        reward_bad = self.beta * (logp_bad - base_bad)
        margin = reward_good - reward_bad
        preference = F.binary_cross_entropy_with_logits(margin, torch.full_like(margin, 1.0 - self.smoothing))
        answer_tokens = (good[1] != IGNORE).sum()
        return preference + self.rpo_alpha * (-logp_good.sum() / answer_tokens)

    def train_step(self, good, bad):
        loss = self.compute_loss(good, bad)
        self.opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.clip)
        self.opt.step()
        return loss, norm


if __name__ == "__main__":
    policy = Policy()
    policy.load_sft(os.path.join(os.environ["WEIGHTS"], "sft.pt"))
    trainer = DPOTrainer(policy)
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        good, bad = load_batch(step)
        probe.start(policy)
        loss, norm = trainer.train_step(good, bad)
        probe.stop()
        total = sum(p.detach().double().square().sum() for p in policy.parameters()).sqrt()
        print(f"step {step} loss {loss.item():.8f} grad {norm.item():.8f} params {total:.8f}")
        probe.step()
