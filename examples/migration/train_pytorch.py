"""Trains one of the networks in PyTorch for a step or two, and records it.

python examples/migration/train_pytorch.py gpt --weights gpt.pt --dump-path ./pytorch_gpt
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

import torch
from data import NETWORKS, make_batch
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger, seed_all

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def build(name: str) -> tuple[nn.Module, Loss]:
    """The network, and the function that computes its loss."""
    module = import_module(f"{name}_pytorch")
    return module.Network(), module.compute_loss


def train(debugger: PrecisionDebugger, name: str, network: nn.Module, compute_loss: Loss, steps: int) -> list[float]:
    """The losses."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        inputs, labels = (torch.from_numpy(array) for array in make_batch(name, step))
        debugger.start(network)
        loss = compute_loss(network, inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        debugger.stop()
        optimizer.step()
        debugger.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one of the networks in PyTorch and record it.")
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--weights", help="where to save the weights that it starts with, for MindSpore")
    parser.add_argument("--steps", type=int, default=1, help="how many training steps (default 1)")
    parser.add_argument("--dump-path", default="./pytorch_dump", help="where the dump goes (default ./pytorch_dump)")
    parser.add_argument("--level", default="mix", help="L0: modules; L1: API calls; mix: both (default mix)")
    parser.add_argument("--task", default="tensor", help="tensor or statistics (default tensor)")
    arguments = parser.parse_args()
    seed_all(1234, rm_dropout=True)  # no two frameworks draw the same numbers
    network, compute_loss = build(arguments.network)
    if arguments.weights:
        torch.save(network.state_dict(), arguments.weights)
    debugger = PrecisionDebugger(dump_path=arguments.dump_path, level=arguments.level, task=arguments.task)
    for step, loss in enumerate(train(debugger, arguments.network, network, compute_loss, arguments.steps)):
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
