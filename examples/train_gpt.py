"""A small GPT on random data, recorded by tensorprobe.

python examples/train_gpt.py --task tensor --dump-path ./good
python examples/train_gpt.py --task tensor --dump-path ./bad --fault
tensorprobe compare ./good ./bad
"""

from __future__ import annotations

import argparse
import logging

import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger, seed_all

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 96, 32, 64, 4, 2, 4


class Attention(nn.Module):
    def __init__(self, has_fault: bool = False) -> None:
        super().__init__()
        self.has_fault = has_fault
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        query, key, value = self.qkv(x).view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        if not self.has_fault:  # without this the shapes still fit, and the heads are mixed up
            mixed = mixed.transpose(1, 2)
        return self.out(mixed.reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    def __init__(self, has_fault: bool = False) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.attention = Attention(has_fault)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, has_fault: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(has_fault and layer == LAYERS - 1) for layer in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(debugger: PrecisionDebugger, steps: int, has_fault: bool) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT(has_fault).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device=device)
        debugger.start(model)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
        print(f"step {step}: loss {loss.item():.6f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on random data and record it.")
    parser.add_argument("--steps", type=int, default=2, help="how many training steps (default 2)")
    parser.add_argument("--dump-path", default="./dump_path", help="where the dump goes (default ./dump_path)")
    parser.add_argument("--level", default="mix", help="L0: modules; L1: API calls; mix: both (default mix)")
    parser.add_argument("--task", default="statistics", help="statistics, tensor or structure (default statistics)")
    parser.add_argument("--fault", action="store_true", help="forget a transpose in the attention of the last block")
    parser.add_argument("--seed", type=int, default=1234, help="of every random generator (default 1234)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # tensorprobe says where the dump is
    seed_all(arguments.seed)
    debugger = PrecisionDebugger(dump_path=arguments.dump_path, level=arguments.level, task=arguments.task)
    train(debugger, arguments.steps, arguments.fault)


if __name__ == "__main__":
    main()
