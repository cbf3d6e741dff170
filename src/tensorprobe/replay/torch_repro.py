"""A recorded call of PyTorch as a script: a function, or a layer as the functions that it called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import torch

from tensorprobe.capture.torch.function import find_function
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.execution import uses_mkldnn
from tensorprobe.replay.object import PYTHON_TYPES
from tensorprobe.replay.precision import torch_dtype
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.recorded import RecordedTensors
from tensorprobe.replay.repro_argument import (
    ArgumentWriter,
    Script,
    check_slot,
    check_word,
    find_results,
    make_title,
    write_number,
    write_results,
)
from tensorprobe.run.leaf import Leaf, backward_leaves, iter_leaves

TENSORS = "tensors.pt"
_OWNERS = {"Functional": "torch.nn.functional", "Torch": "torch", "Tensor": "torch.Tensor", "Ops": "torch.ops"}
_OBJECT = re.compile(r"torch\.\w+", re.ASCII)

_TEMPLATE = '''\
"""{title}
On its recorded inputs: what was recorded against the same call here, and against float64. Needs torch alone."""
from pathlib import Path

import torch

largest = lambda tensor: tensor.abs().max() if tensor.numel() else 0.0
{setting}saved = torch.load(Path(__file__).with_name("{tensors}"), weights_only=True)
trained = {trained}
for is_wide in {precisions}:
    print("recorded against float64:" if is_wide else "recorded against the same call here:")
    widen = lambda dtype: torch.float64 if is_wide and dtype.is_floating_point else dtype
    load = lambda name: saved[name].detach().clone().to(widen(saved[name].dtype)).requires_grad_(name in trained)
    listed = lambda result: list(result) if isinstance(result, tuple) else [result]
    given = {{name: load(name) for name in {given}}}
{calls}
    found = {found}
{backward}    for name in [name for name in {compared} if name in found]:
        recorded, computed = saved["recorded " + name].double(), found[name].detach().double()
        is_same = (recorded == computed) | (recorded.isnan() & computed.isnan())
        distance = (recorded - computed).masked_fill(is_same, 0)
        print(f"  {{name}}: largest difference {{largest(distance):.3g}} of {{largest(computed):.3g}}")
'''

_BACKWARD = """\
    roots = {{name: load("arriving " + name) for name in {arriving} if found[name].requires_grad}}
    torch.autograd.backward([found[name] for name in roots], list(roots.values()))
    found.update({{"gradient of " + name: given[name].grad for name in trained if given[name].grad is not None}})
"""


def make_script(program: Program, operation: Operation) -> Script:
    """UnknownArgumentError or UnknownFunctionError where its record does not say enough."""
    if "dropout" in operation.op.lower() and RecordedTensors(program.rank, torch.device("cpu")).has_no_dropout:
        raise UnknownArgumentError("dropout was off in this run (rm_dropout=True), and it gave back what it was given")
    arriving, departing = backward_leaves(program.gradients.get(operation.backward_name, {}))
    writer = _CallWriter(operation, frozenset(departing))
    results = find_results(operation.outputs)
    found = writer.write_layer(results) if operation.is_layer else writer.write_function(results)
    arriving = {slot: leaf for slot, leaf in arriving.items() if slot in results}
    compared = dict(results)
    compared.update((f"gradient of {slot}", leaf) for slot, leaf in departing.items() if check_slot(slot))
    text = _TEMPLATE.format(
        title=make_title(operation.name, program.rank.name),
        setting="" if uses_mkldnn(program) else "torch.backends.mkldnn.set_flags(False)\n",
        tensors=TENSORS,
        trained=[slot for slot, leaf in writer.given.items() if leaf.requires_grad and leaf.is_floating],
        precisions="(False,)" if writer.draws else "(False, True)",  # in float64 other random numbers would be drawn
        given=list(writer.given),
        calls="\n".join(f"    {line}" for line in writer.lines),
        found=found,
        backward=_BACKWARD.format(arriving=list(arriving)) if arriving else "",
        compared=list(compared),
    )
    tensors = {**writer.given, **writer.draws}
    tensors.update((f"arriving {slot}", leaf) for slot, leaf in arriving.items())
    tensors.update((f"recorded {slot}", leaf) for slot, leaf in compared.items())
    return Script(text, tensors)


def write_tensors(file: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
    torch.save(dict(tensors), file)


@dataclass
class _CallWriter:
    """Writes the lines that make a call, and knows what they need."""

    operation: Operation
    followed: frozenset[str]
    """The places of arguments that have a gradient of their own: a function may be given one tensor in several."""
    lines: list[str] = field(default_factory=list)
    given: dict[str, Leaf] = field(default_factory=dict)
    """The tensors that it is given, by their names in the script."""
    draws: dict[str, Leaf] = field(default_factory=dict)
    """The states of the generator before calls that draw numbers."""
    _made: dict[int, str] = field(default_factory=dict)
    """The tensors that there are, by their numbers."""

    def write_function(self, results: Mapping[str, Leaf]) -> str:
        """One call; what it returns, as Python writes it."""
        self._write_call(self.operation, "results", "")
        return write_results(results)

    def write_layer(self, results: Mapping[str, Leaf]) -> str:
        """The calls that a layer made, one after the other, each with what those before it have made."""
        if not self.operation.children:
            raise UnknownArgumentError(
                "its dump does not have the calls that the layer made. Record it with api_dump of this version, or "
                "with PrecisionDebugger at level L1"
            )
        for leaf in (*self.operation.inputs, *self.operation.state_leaves):
            self._give(leaf, leaf.slot)
        for number, part in enumerate(self.operation.children):
            self._write_call(part, f"made{number}", f"{number}.")
            for slot, leaf in find_results(part.outputs).items():
                if leaf.tensor is not None:
                    self._made[leaf.tensor] = f"made{number}" + "".join(f"[{item}]" for item in slot.split(".")[1:])
        return "{" + ", ".join(f'"{slot}": {self._find_made(leaf)}' for slot, leaf in results.items()) + "}"

    def _write_call(self, part: Operation, name: str, place: str) -> None:
        """`place` goes before the names of its own tensors."""
        find_function(part.prefix, part.op)

        def write_tensor(leaf: Leaf) -> str:
            is_own = leaf.tensor not in self._made or (leaf.slot in self.followed and not self.operation.is_layer)
            text = self._give(leaf, place + leaf.slot) if is_own else self._find_made(leaf)
            return f"{text}.clone()" if part.writes_in_place and leaf.requires_grad else text

        writer = ArgumentWriter(part.tuples, write_tensor, _write_object)
        args = [*writer.write_all(part.arguments, "input"), *writer.write_all(part.keywords, "kwargs")]
        for leaf in iter_leaves(part.fields.get("generator_state"), f"{place}generator_state"):
            self.draws[leaf.slot] = leaf
            self.lines.append(f'torch.set_rng_state(saved["{leaf.slot}"])')
        function = _write_function(part)
        if part.op == "__setitem__" and args:  # it returns nothing
            self.lines += [
                f"target = {args[0]}",
                f"{function}({', '.join(['target', *args[1:]])})",
                f"{name} = [target]",
            ]
        else:
            self.lines += _write_casts(part, f"{name} = listed({function}({', '.join(args)}))")

    def _give(self, leaf: Leaf, name: str) -> str:
        """A tensor that is read from its file."""
        if leaf.data_name is None and self.operation.is_layer:
            raise UnknownArgumentError(f"{name} is used inside of the layer, and no recorded call made it")
        self.given[check_slot(name)] = leaf
        text = f'given["{name}"]'
        if leaf.tensor is not None:
            self._made.setdefault(leaf.tensor, text)
        return text

    def _find_made(self, leaf: Leaf) -> str:
        found = self._made.get(leaf.tensor) if leaf.tensor is not None else None
        if found is None:
            raise UnknownArgumentError(f"no recorded call made {leaf.slot}")
        return found


def _write_function(part: Operation) -> str:
    """Torch's own layers call some functions by names that torch does not show."""
    word = check_word(part.op)
    if part.prefix == "Functional" and not hasattr(torch.nn.functional, word):
        return f"torch._C._nn.{word}"
    if part.prefix == "Torch" and "." not in word and not hasattr(torch, word):
        return f"torch._C._VariableFunctions.{word}"
    return f"{_OWNERS[part.prefix]}.{word}"


def _write_casts(part: Operation, line: str) -> list[str]:
    """A call inside of autocast."""
    casts = part.fields.get("autocast")
    dtype = casts.get("cpu") if isinstance(casts, dict) else None
    if not isinstance(dtype, str):
        return [line]
    return [f'with torch.autocast("cpu", {torch_dtype(dtype)}, enabled=not is_wide):', f"    {line}"]


def _write_object(kind: str, value: Any) -> str:
    if kind == "torch.dtype" and _OBJECT.fullmatch(str(value)):
        return f"widen({value})"
    if kind == "type" and value in PYTHON_TYPES:
        return f"widen({PYTHON_TYPES[value]})"
    if kind in ("torch.memory_format", "torch.layout") and _OBJECT.fullmatch(str(value)):
        return str(value)
    if kind == "torch.device":
        return repr("cpu")
    if kind == "torch.Size" and isinstance(value, list):
        return f"torch.Size([{', '.join(map(write_number, value))}])"
    raise UnknownArgumentError(f"an argument of type {kind[:60]}")
