"""Small programs that are recorded, and what a replay of them is held against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tensorprobe
from tensorprobe.replay.engine import Replay
from tensorprobe.replay.gradient_sum import find_broken_sums
from tensorprobe.replay.invocation import Tensors
from tensorprobe.replay.onlooker import Onlooker
from tensorprobe.replay.precision import Precision, PrecisionName
from tensorprobe.replay.program import Operation, read_program
from tensorprobe.replay.recorded import is_bit_equal
from tensorprobe.run.backward_pass import LeafGradient
from tensorprobe.run.leaf import Leaf, iter_leaves
from tensorprobe.store.reader import open_dump

Step = Callable[[], torch.Tensor]


class ConvNet(nn.Module):
    """BatchNorm, an in-place ReLU, dropout after a zero, pooling, a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.lstm, self.head = nn.LSTM(32, 12, bidirectional=True, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.dropout(self.relu(self.norm(self.first(x)))), 2)
        x, _ = self.lstm(x.permute(0, 2, 1, 3).flatten(2))
        return self.head(x.mean(1))


class Attention(nn.Module):
    """Embedding, fused attention with dropout, a tied head, views, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(17, 16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in parts)
        mask = torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool).tril()
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=0.1)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x @ self.words.weight.T


class InPlace(nn.Module):
    """Writes through views, into buffers, by index; looks through aliases; no_grad in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("memory", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        canvas = torch.zeros(4, 6, dtype=x.dtype)
        left = canvas[:, :3]
        left.add_(y[:, 3:])
        canvas[1] = y[0] * 2
        canvas[:, [0, 5]] += 1
        with torch.no_grad():
            self.memory.mul_(0.5).add_(y)
        flat = canvas.view(-1)
        flat[2::3].mul_(3)
        return (canvas + self.memory).sigmoid_() * y.T.contiguous().view(4, 6)


class Router(nn.Module):
    """topk, index_select, scatter: decisions, and values gathered by them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            result.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return result


def make_program(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Step]:
    """A model and one step of it: in every precision the same numbers, as far as float32 has them."""
    torch.manual_seed(0)
    models = {"convnet": ConvNet, "attention": Attention, "in_place": InPlace, "router": Router}
    model = models[name]().to(dtype)
    if name == "convnet":
        x, y = torch.randn(4, 3, 8, 8).to(dtype), torch.randint(0, 5, (4,))
        return model, lambda: F.cross_entropy(model(x), y)
    if name == "attention":
        tokens = torch.randint(0, 17, (3, 7))
        return model, lambda: F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    x = torch.randn(4 if name == "in_place" else 20, 6).to(dtype)
    return model, lambda: (model(x) ** 2).mean()


PROGRAMS = ("convnet", "attention", "in_place", "router")


def record(folder: Path, model: nn.Module, step: Step, level: str = "mix", cast: torch.dtype | None = None) -> Path:
    """One training step, with its tensors."""
    with tensorprobe.capture(model, folder, level=level, task="tensor") as run:
        with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
            loss = step()
        loss.backward()
        run.step()
    return folder


class Differences(Onlooker):
    """The values of a replay that are not, bit for bit, those recorded."""

    def __init__(self) -> None:
        self.replay: Replay | None = None
        self.found: list[str] = []
        self.forward_count = self.leaf_count = 0
        self._gradients: dict[tuple[str, str], torch.Tensor] = {}

    def see_results(self, operation: Operation, tensors: Tensors) -> None:
        for leaf in operation.outputs:
            if leaf.slot in tensors and leaf.is_floating:
                self.forward_count += 1
                self._hold(f"{operation.name}.{leaf.slot}", leaf, tensors[leaf.slot])

    def see_gradient(self, record: str, slot: str, gradient: torch.Tensor) -> None:
        self._gradients[record, slot] = gradient.clone()  # the record of a later pass takes the place of an earlier one

    def see_leaf_gradient(self, record: str, leaf: LeafGradient, gradient: torch.Tensor) -> None:
        if leaf.after is not None and leaf.after.data_name is not None:
            self.leaf_count += 1
            self._hold(f"{record}.{leaf.leaf.tensor}", leaf.after, gradient)

    @property
    def gradient_count(self) -> int:
        return len(self._gradients)

    def hold_gradients(self) -> None:
        """After the last pass."""
        assert self.replay is not None
        for (record, slot), gradient in self._gradients.items():
            leaf = gradient_leaves(self.replay.program.gradients[record]).get(slot)
            if leaf is not None:
                self._hold(f"{record}.{slot}", leaf, gradient)
            else:
                self.found.append(f"{record}.{slot}: not recorded")

    def _hold(self, name: str, leaf: Leaf, tensor: torch.Tensor) -> None:
        assert self.replay is not None
        if not is_bit_equal(self.replay.recorded.load(leaf), tensor):
            self.found.append(name)


def gradient_leaves(fields: Any) -> dict[str, Leaf]:
    """The tensors of a backward record by their places."""
    found: dict[str, Leaf] = {}
    for field, root in (("input", "input"), ("output", "output"), ("output_kwargs", "kwargs")):
        found.update((leaf.slot, leaf) for leaf in iter_leaves(fields.get(field), root))
    if not found:
        found = {name: leaf for name, tree in fields.items() for leaf in iter_leaves(tree, name)}
    return found


def run_replay(folder: Path, precision: PrecisionName) -> tuple[Replay, Differences]:
    """Replay the only step of a dump."""
    program = read_program(next(open_dump(folder).ranks()))
    differences = Differences()
    replay = differences.replay = Replay(program, Precision(precision), torch.device("cpu"), differences)
    replay.pin_gradients(find_broken_sums(program, replay.recorded))
    replay.run()
    differences.hold_gradients()
    return replay, differences


def count_gradients(folder: Path) -> int:
    """How many gradients a dump has."""
    program = read_program(next(open_dump(folder).ranks()))
    return sum(len(gradient_leaves(fields)) for fields in program.gradients.values())
