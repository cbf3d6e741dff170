"""What comparing by truth costs on a model of very many small layers, where it is the number of calls that counts.

    python benchmarks/deep.py                             500 layers, 19,000 records a side, statistics and tensors
    python benchmarks/deep.py --layers 100 --task tensor

One call in the middle is wrong (the scale of an attention). Processor time, beside that of a plain step; the first
lines of the verdict are printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import tensorprobe

sys.path.insert(0, str(Path(__file__).parent))
from gpt import GPT, Block, Size


class WrongBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.gelu(self.up(self.norm_2(x))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--task", choices=("statistics", "tensor"), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = Size(layers=options.layers, width=16, heads=4, batch=2, tokens=8, words=64, dtype=torch.float32)
    for task in options.task or ("statistics", "tensor"):
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), size, task)


def compare(folder: Path, size: Size, task: str) -> None:
    for side in ("reference", "candidate"):
        torch.manual_seed(0)
        model = GPT(size)
        tokens = torch.randint(0, size.words, (size.batch, size.tokens + 1))
        if side == "candidate":
            model.blocks[size.layers // 2].__class__ = WrongBlock
        plain = min(run_step(model, tokens) for _ in range(3))
        with tensorprobe.capture(model, folder / side, level="L1", task=task):
            run_step(model, tokens)
    began = time.process_time()
    found = tensorprobe.compare(folder / "reference", folder / "candidate", processes=1)
    seconds = time.process_time() - began
    print(f"{size.layers} layers, task {task}: {seconds:.1f} s, {seconds / plain:.0f} plain steps of {plain:.2f} s")
    print("\n".join(found.verdict.headline.splitlines() + [f"  {line}" for line in found.verdict.evidence[:6]]))


def run_step(model: GPT, tokens: torch.Tensor) -> float:
    began = time.process_time()
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return time.process_time() - began


if __name__ == "__main__":
    main()
