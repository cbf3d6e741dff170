"""DPO in the style of trl: one forward for chosen and rejected together, log-probs by gather,
a frozen copy of the policy as reference model, plus a small NLL term (RPO) on the chosen answers."""
import copy
import os
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger


@dataclass
class Settings:
    vocab: int = 40
    width: int = 24
    heads: int = 3
    layers: int = 2
    context: int = 24
    beta: float = 0.3
    label_smoothing: float = 0.1
    rpo_alpha: float = 0.2
    lr: float = 5e-3
    max_grad_norm: float = 0.5
    steps: int = int(os.environ.get("STEPS", "2"))


class TinyGPT(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.width)
        self.position = nn.Embedding(s.context, s.width)
        layer = nn.TransformerEncoderLayer(
            s.width, s.heads, dim_feedforward=3 * s.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, s.layers, norm=nn.LayerNorm(s.width), enable_nested_tensor=False)
        self.head = nn.Linear(s.width, s.vocab, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(t)
        x = self.embed(ids) + self.position(torch.arange(t))
        return self.head(self.body(x, mask=causal, is_causal=True))


def init_from_numpy(model, seed=5):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            z = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32))
            if p.ndim == 2:
                p.copy_(0.5 * z if "embed" in name or "position" in name else z / p.shape[1] ** 0.5)
            else:
                p.copy_(0.1 * z + (1 if "norm" in name and "weight" in name else 0))


def make_pairs(step, s, n=3):
    """prompt + chosen and prompt + rejected, every one with its own lengths"""
    rng = np.random.default_rng(3000 + step)
    rows = []
    for _ in range(n):
        prompt = rng.integers(1, s.vocab, rng.integers(3, 7))
        chosen, rejected = (rng.integers(1, s.vocab, rng.integers(3, 12)) for _ in range(2))
        rows.append((prompt, chosen, rejected))
    return rows


def concatenate(rows):
    """-> input_ids and labels, first all the chosen ones, then all the rejected ones"""
    sequences = [(p, c) for p, c, _ in rows] + [(p, r) for p, _, r in rows]
    longest = max(len(p) + len(a) for p, a in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (prompt, answer) in enumerate(sequences):
        full = torch.from_numpy(np.concatenate([prompt, answer]))
        ids[i, : len(full)] = full
        labels[i, len(prompt) : len(full)] = full[len(prompt) :]
    return ids, labels


def get_batch_logps(logits, labels):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1]
    loss_mask = labels != -100
    labels[labels == -100] = 0  # a dummy, gather needs a valid index
    per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (per_token * loss_mask).sum(-1), loss_mask.sum(-1)


def dpo_loss(policy_logps, reference_logps, s):
    n = len(policy_logps) // 2
    pi_logratios = policy_logps[:n] - policy_logps[n:]
    ref_logratios = reference_logps[:n] - reference_logps[n:]
    logits = pi_logratios - ref_logratios
    losses = (
        -F.logsigmoid(s.beta * logits) * (1 - s.label_smoothing)
        - F.logsigmoid(-s.beta * logits) * s.label_smoothing
    )
    return losses.mean()


def main(dump):
    s = Settings()
    policy = TinyGPT(s)
    init_from_numpy(policy)
    torch.save(policy.state_dict(), os.path.join(os.environ["WEIGHTS"], "sft.pt"))
    reference_model = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=s.lr, eps=1e-6)
    debugger = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(s.steps):
        ids, labels = concatenate(make_pairs(step, s))
        debugger.start(policy)
        with torch.no_grad():
            reference_logps, _ = get_batch_logps(reference_model(ids), labels)
        policy_logps, sizes = get_batch_logps(policy(ids), labels)
        n = len(ids) // 2
        nll = -policy_logps[:n].sum() / sizes[:n].sum()
        loss = dpo_loss(policy_logps, reference_logps, s) + s.rpo_alpha * nll
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), s.max_grad_norm)
        optimizer.step()
        debugger.stop()
        size = sum(p.detach().double().square().sum() for p in policy.parameters()).sqrt()
        print(f"step {step} loss {loss.item():.8f} grad {norm.item():.8f} params {size:.8f}")
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main(sys.argv[1])
