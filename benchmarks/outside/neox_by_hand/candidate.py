"""GPT-NeoX written out: split projections, fused attention, blocks recomputed in the backward, one sentence pair at a time."""
import os, sys
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from tensorprobe.pytorch import PrecisionDebugger

VOCAB, PAD, DIM, HEADS, HEAD, INNER, LAYERS, TURNED = 37, 0, 16, 2, 8, 28, 2, 4


def turn(x, cos, sin):
    """The first numbers of a head are turned, the others stay."""
    first, second, rest = x.split([TURNED // 2, TURNED // 2, HEAD - TURNED], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class NeoBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_attn, self.ln_mlp = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.inner, self.outer = nn.Linear(DIM, INNER), nn.Linear(INNER, DIM)

    def forward(self, x, cos, sin, mask):
        h = self.ln_attn(x)
        q, k, v = (f(h).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, attn_mask=mask)
        return x + self.o(a.transpose(1, 2).flatten(2)) + self.outer(F.gelu(self.inner(self.ln_mlp(x))))


class NeoX(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([NeoBlock() for _ in range(LAYERS)])
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, alive):
        n = ids.shape[1]
        angle = torch.arange(n)[:, None] * 500.0 ** -(torch.arange(0, TURNED, 2) / TURNED)
        mask = torch.tril(torch.ones(n, n, dtype=torch.bool)) & alive[:, None, None]
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(block, x, angle.cos(), angle.sin(), mask, use_reentrant=False)
        return self.head(self.ln(x))


def split_heads(joined):
    """(heads, 3, head): what each head asks, holds and gives."""
    return joined.unflatten(0, (HEADS, 3, HEAD)).transpose(0, 1).flatten(1, 2)


@torch.no_grad()
def load(model, weights):
    base = "gpt_neox."
    model.words.weight.copy_(weights[base + "embed_in.weight"])
    model.head.weight.copy_(weights["embed_out.weight"] if "embed_out.weight" in weights else weights["lm_head.weight"])
    pairs = [(model.ln, base + "final_layer_norm")]
    for i, block in enumerate(model.blocks):
        old = f"{base}layers.{i}."
        pairs += [(block.ln_attn, old + "input_layernorm"), (block.ln_mlp, old + "post_attention_layernorm"), (block.o, old + "attention.dense")]
        pairs += [(block.inner, old + "mlp.dense_h_to_4h"), (block.outer, old + "mlp.dense_4h_to_h")]
        for kind in ("weight", "bias"):
            for linear, part in zip((block.q, block.k, block.v), split_heads(weights[old + "attention.query_key_value." + kind])):
                getattr(linear, kind).copy_(part)
    for module, old in pairs:
        for kind in ("weight", "bias"):
            getattr(module, kind).copy_(weights[f"{old}.{kind}"])


def batch(step, size=4, length=9):
    rng = np.random.default_rng([13, step])
    ids = rng.integers(3, VOCAB, (size, length))
    alive = np.arange(length)[None] < np.array([9, 6, 8, 4])[:, None]
    return torch.tensor(ids * alive), torch.tensor(alive)


def main():
    model = NeoX().train()
    load(model, torch.load(os.environ["WEIGHTS"] + "/neox.pt"))
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3, weight_decay=0.02, decoupled_weight_decay=True, eps=1e-5, foreach=True)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 1))):
        ids, alive = batch(step)
        debugger.start(model)
        count = alive[:, 1:].sum()
        total = 0.0
        for half in (slice(0, 2), slice(2, 4)):
            logits = model(ids[half], alive[half])[:, :-1]
            wanted, counts = ids[half, 1:], alive[half, 1:]
            z = logits.logsumexp(-1)
            surprise = z - logits.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
            loss = ((surprise + 0.01 * z.square()) * counts).sum() / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        debugger.stop()
        grad = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
        print(f"{step} {total:.8f} {grad:.8f} {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f}")
        model.zero_grad()
        debugger.step()


if __name__ == "__main__":
    main()
