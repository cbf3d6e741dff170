"""Adapters of BART as branches beside the frozen layers; encoder, decoder and loss called one by one, SDPA."""
import os
import sys
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.bart import BartConfig, BartModel

import tensorprobe

BOS, PAD, EOS, VOCAB = 0, 1, 2, 50


def gaussian(name, *shape):
    return torch.from_numpy(np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32))


class Branch(nn.Module):
    """frozen(x) + scale * (x down) up"""

    def __init__(self, frozen: nn.Linear, path: str, rank: int, alpha: float):
        super().__init__()
        self.frozen = frozen
        d_in, d_out = frozen.in_features, frozen.out_features
        self.down = nn.Parameter((gaussian(path + ".lora_A", rank, d_in) * d_in**-0.5).t().contiguous())
        self.up = nn.Parameter((gaussian(path + ".lora_B", d_out, rank) * 0.1).t().contiguous())
        self.scale = alpha / rank

    def forward(self, x):
        return torch.add(self.frozen(x), torch.matmul(x @ self.down, self.up), alpha=self.scale)


class Summariser(nn.Module):
    def __init__(self, rank=3, alpha=12.0):
        super().__init__()
        layers = dict(encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24, decoder_ffn_dim=24)
        heads = dict(encoder_attention_heads=2, decoder_attention_heads=2)
        rates = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
        config = BartConfig(
            vocab_size=VOCAB, d_model=16, max_position_embeddings=20, scale_embedding=True, use_cache=False,
            attn_implementation="sdpa", **layers, **heads, **rates,
        )  # fmt: skip
        self.bart = BartModel(config)
        self.fill()
        self.requires_grad_(False)
        self.adapters = []
        for block in [*self.bart.encoder.layers, *self.bart.decoder.layers]:
            for owner in (block.self_attn, getattr(block, "encoder_attn", None), block):
                for child in ("q_proj", "v_proj", "fc1"):
                    if owner is not None and hasattr(owner, child):
                        self.attach(owner, child, rank, alpha)

    def attach(self, owner, child, rank, alpha):
        linear = getattr(owner, child)
        path = next("model." + n for n, m in self.bart.named_modules() if m is linear)
        branch = Branch(linear, path, rank, alpha)
        setattr(owner, child, branch)
        self.adapters.append(branch)

    @torch.no_grad()
    def fill(self):
        for name, p in self.bart.named_parameters():
            x = gaussian("model." + name, *p.shape)
            if name.endswith("bias"):
                p.copy_(x * 0.1)
            elif x.dim() == 1:
                p.copy_(x * 0.1 + 1)
            else:
                p.copy_(x * (0.3 if "embed" in name or "shared" in name else x.shape[1] ** -0.5))

    def forward(self, source, target):
        keep = source != PAD
        memory = self.bart.encoder(input_ids=source, attention_mask=keep).last_hidden_state
        prompt = F.pad(target, (1, -1), value=EOS)
        states = self.bart.decoder(
            input_ids=prompt, encoder_hidden_states=memory, encoder_attention_mask=keep
        ).last_hidden_state
        logits = torch.einsum("btd,vd->bvt", states, self.bart.shared.weight)
        return F.cross_entropy(logits, target, ignore_index=PAD)


def read(step):
    rs = np.random.RandomState(77 + step)
    sources, targets = [], []
    for _ in range(4):
        n, m = rs.randint(5, 12), rs.randint(4, 9)
        for words, length in ((sources, n), (targets, m)):
            inner = torch.from_numpy(rs.randint(3, VOCAB, length - 2))
            words.append(F.pad(F.pad(inner, (1, 0), value=BOS), (0, 1), value=EOS))
    stack = lambda rows, width: torch.stack([F.pad(r, (0, width - len(r)), value=PAD) for r in rows])
    return stack(sources, 11), stack(targets, 8)


def l2(tensors):
    return torch.cat([t.detach().double().reshape(-1) for t in tensors if t is not None]).norm().item()


def optimiser(net, lr=5e-3, ratio=4.0):
    downs, ups = [a.down for a in net.adapters], [a.up for a in net.adapters]
    # LoRA+ (Hayou et al. 2024)
    return torch.optim.Adam([{"params": downs}, {"params": ups, "lr": lr * ratio}], lr=lr, eps=1e-7)


if __name__ == "__main__":
    net = Summariser()
    net.train()
    trained = [p for p in net.parameters() if p.requires_grad]
    adam = optimiser(net)
    options = {"level": os.environ.get("LEVEL", "L1"), "task": os.environ.get("TASK", "tensor")}
    with tensorprobe.capture(net, sys.argv[1], **options) as run:
        for step in range(int(os.environ.get("STEPS", "2"))):
            adam.zero_grad()
            loss = net(*read(step))
            loss.backward()
            adam.step()
            print(f"step {step} loss {loss:.8f} grad {l2(p.grad for p in trained):.8f} weights {l2(trained):.8f}")
            run.step()
