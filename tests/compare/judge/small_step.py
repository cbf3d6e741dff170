"""A training step of two layers, written in two ways: by rows with `linear`, or by columns with `matmul`, the batch in
another order. A `Fault` multiplies what one place computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorprobe.run.step import Run
from tests.compare.judge.sketched_recording import Array, SketchedRecording

RNG = np.random.default_rng(0)
X, W, B, V = (RNG.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (5, 4), (5,), (3, 5)))
ANGLES = np.linspace(0.1, 1.5, 5, dtype=np.float32)


@dataclass(frozen=True)
class Fault:
    """1 where there is none."""

    loss: float = 1.0
    tanh: float = 1.0
    tanh_back: float = 1.0
    last_weight_back: float = 1.0
    table: float = 1.0
    end: float = 1.0
    is_cut: bool = False
    """Nothing comes back to the first layer."""


RIGHT = Fault()


def by_rows(folder: Path, fault: Fault = RIGHT) -> Run:
    run = SketchedRecording()
    v = run.parameter("last.weight", V)
    x, w, b = run.data(X), run.parameter("first.weight", W), run.parameter("first.bias", B)
    a = run.api("Functional.linear", x, w, b, output=X @ W.T + B)
    table = run.api("Torch.sin", run.data(ANGLES), output=_times(np.sin(ANGLES), fault.table))
    h = run.api("Torch.tanh", a, output=_times(np.tanh(a.array), fault.tanh))
    s = run.api("Tensor.add", h, table, output=h.array + table.array)
    z = run.api("Functional.linear", s, v, output=s.array @ V.T)
    run.api("Torch.sigmoid", z, output=_times(1 / (1 + np.exp(-z.array)), fault.end))
    q = run.api("Torch.square", z, output=z.array**2)
    run.ask(run.api("Torch.mean", q, output=_times(q.array.mean(), fault.loss)))
    g = run.backward("Torch.mean.0", run.data(np.float32(1)), np.full_like(q.array, 1 / q.array.size))
    g = run.backward("Torch.square.0", g, 2 * z.array * g.array)
    last = _times(g.array.T @ s.array, fault.last_weight_back)
    g, _ = run.backward("Functional.linear.1", g, [g.array @ V, last])
    if fault.is_cut:
        return run.read(folder)
    g, _ = run.backward("Tensor.add.0", g, [g.array * 1, None])
    g = run.backward("Torch.tanh.0", g, _times(g.array * (1 - np.tanh(a.array) ** 2), fault.tanh_back))
    run.backward("Functional.linear.0", g, [None, g.array.T @ X, g.array.sum(0)])
    return run.read(folder)


def by_columns(folder: Path, fault: Fault = RIGHT, *, parts: int = 1, pieces: int = 1) -> Run:
    """`parts` of the batch, each with a backward; `pieces` of the last weight, each a parameter."""
    run = SketchedRecording()
    for part, rows in enumerate(np.split(X[::-1], parts)):
        _take_columns(run, np.ascontiguousarray(rows.T), fault, part, parts, np.array_split(V, pieces))
    return run.read(folder)


def _take_columns(run: SketchedRecording, x: Array, fault: Fault, part: int, parts: int, pieces: list[Array]) -> None:
    first, count = part * (1 + len(pieces)), len(pieces)
    w, b = run.parameter("w", W), run.parameter("b", B[:, None])
    table = run.api("Tensor.sin", run.data(ANGLES[:, None]), output=_times(np.sin(ANGLES[:, None]), fault.table))
    a = run.api("Torch.matmul", w, run.data(x), output=W @ x)
    a = run.api("Torch.add", a, b, output=a.array + b.array)
    h = run.api("Tensor.tanh", a, output=_times(np.tanh(a.array), fault.tanh))
    s = run.api("Torch.add", h, table, output=h.array + table.array)
    named = [run.parameter(f"v.{number}", piece) for number, piece in enumerate(pieces)]
    made = [run.api("Torch.matmul", v, s, output=v.array @ s.array) for v in named]
    z = run.api("Torch.cat", *made, output=np.concatenate([one.array for one in made])) if count > 1 else made[0]
    run.api("Tensor.sigmoid", z, output=_times(1 / (1 + np.exp(-z.array)), fault.end))
    q = run.api("Tensor.mul", z, z, output=z.array**2)
    run.ask(run.api("Tensor.mean", q, output=_times(q.array.mean() / parts, fault.loss)))
    g = run.backward(f"Tensor.mean.{part}", run.data(np.float32(1)), np.full_like(q.array, 1 / (parts * q.array.size)))
    both = run.backward(f"Tensor.mul.{part}", g, [z.array * g.array, z.array * g.array])
    shares = np.array_split(2 * both[0].array, count)
    if count > 1:
        run.backward(f"Torch.cat.{part}", run.data(2 * both[0].array), shares)
    total = np.zeros_like(s.array)
    for number, (v, share) in enumerate(zip(named, shares, strict=True)):
        given = [_times(share @ s.array.T, fault.last_weight_back), v.array.T @ share]
        total += run.backward(f"Torch.matmul.{first + 1 + number}", run.data(share), given)[1].array
    if fault.is_cut:
        return
    g, _ = run.backward(f"Torch.add.{2 * part + 1}", run.data(total), [total, None])
    g = run.backward(f"Tensor.tanh.{part}", g, _times(g.array * (1 - np.tanh(a.array) ** 2), fault.tanh_back))
    g, _ = run.backward(f"Torch.add.{2 * part}", g, [g.array * 1, g.array.sum(1, keepdims=True)])
    run.backward(f"Torch.matmul.{first}", g, [g.array @ x.T, None])


def _times(array: Array, factor: float) -> Array:
    return np.asarray(array * np.float32(factor))
