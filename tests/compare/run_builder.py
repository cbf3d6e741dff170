"""Runs for tests, without a framework: a small program is followed, and what capture would record comes out.

Values are simulated: a result is a number that depends on the operation and on everything that went in, so equal
computations have equal values and whatever depends on a change differs. Backward records follow in reverse order.

    builder = RunBuilder("mix")
    x = builder.data("x", (2, 4))
    weight = builder.weight("fc.weight", (4, 4))
    with builder.module("fc", "Linear", {"weight": weight}):
        x = builder.call("Functional", "linear", x, weight, shape=(2, 4))
    run = builder.build()

`marks` names every record by what it is in the program, whatever it is called: the truth of an alignment.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, make_call
from tensorprobe.store.reader import RankDump, Record

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A value on its way through the program."""

    seed: int
    shape: Shape
    source: str | None = None


@dataclass
class _Frame:
    path: str
    class_name: str
    name: str
    parameters: dict[str, Tensor]
    inputs: list[Tensor] = field(default_factory=list)


class RunBuilder:
    """Records what is called; `level` as in a configuration. With `seed` all weights are others."""

    def __init__(self, level: str = "mix", seed: int = 0, has_flow: bool = True, has_paths: bool = True) -> None:
        self.level = level
        self.seed = seed
        self.has_flow = has_flow
        self.has_paths = has_paths
        self.marks: dict[str, str] = {}
        self._records: list[tuple[str, dict[str, Any]]] = []
        self._backward: list[tuple[str, dict[str, Any]]] = []
        self._parents: dict[str, str | None] = {}
        self._counts: Counter[str] = Counter()
        self._mark_counts: Counter[str] = Counter()
        self._frames: list[_Frame] = []
        self._gradients: dict[str, dict[str, Any]] = {}

    def weight(self, name: str, shape: Shape) -> Tensor:
        """A parameter: its value depends on its name, which stays the same when its module is renamed."""
        return Tensor(_mix("weight", name, self.seed), shape)

    def data(self, name: str, shape: Shape) -> Tensor:
        return Tensor(_mix("data", name), shape)

    @contextmanager
    def module(
        self, path: str, class_name: str, parameters: dict[str, Tensor] | None = None, mark: str | None = None
    ) -> Iterator[None]:
        stem = f"Module.{path}.{class_name}" if path else f"Module.{class_name}"
        name = f"{stem}.forward.{self._counts[stem]}"
        self._counts[stem] += 1
        parent = self._frames[-1].name if self._frames else None
        frame = _Frame(path, class_name, name, parameters or {})
        self._frames.append(frame)
        first = len(self._records)
        yield
        self._frames.pop()
        if self.level == "L1":
            return
        inputs, output = frame.inputs[:1], self._last_output(first)
        fields = {
            "input_args": [self._leaf(tensor, is_input=True) for tensor in inputs],
            "input_kwargs": {},
            "output": [self._leaf(output)],
            "parameters": {key: self._leaf(tensor) for key, tensor in frame.parameters.items()},
            "module_path": path,
        }
        self._add(name, fields, parent, mark or stem)
        if frame.parameters:
            self.marks[f"{stem}.parameters_grad"] = f"{mark or stem} gradients"
            self._gradients[f"{stem}.parameters_grad"] = {
                key: [self._leaf(Tensor(_mix("grad", tensor.seed), tensor.shape))]
                for key, tensor in frame.parameters.items()
            }

    def call(
        self, prefix: str, op: str, *inputs: Tensor, shape: Shape, mark: str | None = None, caller: str | None = None
    ) -> Tensor:
        """An API call. `mark`: what it is called in the truth; by default its operation and place."""
        stem = f"{prefix}.{op}"
        name = f"{stem}.{self._counts[stem]}.forward"
        self._counts[stem] += 1
        output = Tensor(_mix(op.strip("_"), *(tensor.seed for tensor in inputs)), shape, name)
        for frame in self._frames:
            frame.inputs.extend(inputs)
        if self.level == "L0":
            self._records.append(("", {"tensor": output}))  # only for the output of the modules around it
            return Tensor(output.seed, output.shape)
        fields: dict[str, Any] = {
            "input_args": [self._leaf(tensor, is_input=True) for tensor in inputs],
            "input_kwargs": {},
            "output": [self._leaf(output)],
        }
        if self._frames:
            fields["module_path"] = self._frames[-1].path
        if caller is not None:
            fields["caller"] = caller
        parent = self._frames[-1].name if self._frames and self.level == "mix" else None
        self._add(name, fields, parent, mark or op.strip("_"), tensor=output, inputs=inputs)
        return output

    def build(self) -> Run:
        """The records of one step, in memory."""
        listed = [record for record in self._records if record[0]]
        listed += reversed(self._backward)
        listed += self._gradients.items()
        rank = RankDump(Path(), Path(), 0, None, None, None)
        calls: list[Call] = []
        for position, (name, fields) in enumerate(listed):
            plain = {key: value for key, value in fields.items() if key != "tensor"}
            if not self.has_paths:
                plain.pop("module_path", None)
            parents = self._parents if self.level == "mix" and self.has_paths else {}
            calls.append(make_call(Record(name, plain), position, parents))
        return Run(rank, calls)

    def _add(
        self,
        name: str,
        fields: dict[str, Any],
        parent: str | None,
        mark: str,
        tensor: Tensor | None = None,
        inputs: tuple[Tensor, ...] = (),
    ) -> None:
        self._records.append((name, {**fields, "tensor": tensor}))
        self._parents[name] = parent
        count = self._mark_counts[mark]
        self._mark_counts[mark] += 1
        self.marks[name] = f"{mark}#{count}"
        head, _, tail = name.rpartition("forward")
        back = f"{head}backward{tail}"
        self.marks[back] = f"{mark}#{count} backward"
        output = fields["output"][0]
        gradients = [{**leaf, "source": None} for leaf in fields["input_args"]]
        self._backward.append(
            (back, {"input": [output], "output": gradients, "module_path": fields.get("module_path")})
        )

    def _last_output(self, first: int) -> Tensor:
        for _, fields in reversed(self._records[first:]):
            if fields.get("tensor") is not None:
                return fields["tensor"]  # type: ignore[no-any-return]
        return Tensor(0, ())

    def _leaf(self, tensor: Tensor, is_input: bool = False) -> dict[str, Any]:
        numbers = random.Random(tensor.seed)
        high, low = 1 + numbers.random(), -1 - numbers.random()
        leaf = {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": list(tensor.shape),
            "Max": high,
            "Min": low,
            "Mean": numbers.uniform(-0.1, 0.1),
            "Norm": numbers.uniform(1, 9),
            "requires_grad": True,
        }
        if is_input and self.has_flow and tensor.source is not None:
            leaf["source"] = tensor.source
        return leaf


def _mix(*things: object) -> int:
    return zlib.crc32(repr(things).encode())
