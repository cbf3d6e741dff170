"""One recorded call as a script of its own, with its tensors beside it: what one attaches to a bug report.

The script needs the framework, not tensorprobe. It makes the call on the recorded inputs, forward and backward, once in
the recorded precision and once in float64, and prints what was recorded against both.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError, find_function
from tensorprobe.config.suggestion import suggest
from tensorprobe.errors import UsageError
from tensorprobe.replay.argument import Leaf, UnknownArgumentError, is_tensor, iter_leaves, read_leaf
from tensorprobe.replay.execution import uses_mkldnn
from tensorprobe.replay.program import Operation, Program, backward_leaves
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.workspace import lay_out
from tensorprobe.store.disk import open_whole, writing
from tensorprobe.store.layout import make_folder

_OWNERS = {"Functional": "torch.nn.functional", "Torch": "torch", "Tensor": "torch.Tensor", "Ops": "torch.ops"}
_WORD = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_SLOT = re.compile(r"[\w.]+", re.ASCII)
SCRIPT, TENSORS = "repro.py", "tensors.pt"

_TEMPLATE = '''\
"""{title}
On its recorded inputs: what was recorded against the same call here, and against float64. Needs torch alone."""
from pathlib import Path

import torch

{setting}saved = torch.load(Path(__file__).with_name("{tensors}"), weights_only=True)
trained = {trained}
for is_wide in {precisions}:
    print("recorded against float64:" if is_wide else "recorded against the same call here:")
    widen = lambda dtype: torch.float64 if is_wide and dtype.is_floating_point else dtype
    load = lambda name: saved[name].detach().clone().to(widen(saved[name].dtype)).requires_grad_(name in trained)
    given = {{name: load(name) for name in {given}}}
{before}{cast}    result = {call}
{after}    results = list(result) if isinstance(result, (tuple, list)) else [result]
    found = {{f"output.{{number}}": result for number, result in enumerate(results)}}
{backward}    for name in [name for name in {compared} if name in found]:
        recorded, computed = saved["recorded " + name].double(), found[name].detach().double()
        distance, size = (recorded - computed).abs().max(), computed.abs().max()
        print(f"  {{name}}: largest difference {{distance:.3g}} of {{size:.3g}}")
'''

_BACKWARD = """\
    roots = {{name: load("arriving " + name) for name in {arriving} if found[name].requires_grad}}
    torch.autograd.backward([found[name] for name in roots], list(roots.values()))
    found.update({{"gradient of " + name: given[name].grad for name in trained if given[name].grad is not None}})
"""


@dataclass
class _Script:
    """What a call becomes, piece by piece."""

    operation: Operation
    tensors: dict[str, Leaf] = field(default_factory=dict)
    """By their names in the script."""

    def render(self, tree: Any, slot: str) -> str:
        """An argument as Python writes it."""
        if isinstance(tree, list):
            items = [self.render(item, f"{slot}.{index}") for index, item in enumerate(tree)]
            if slot in self.operation.tuples:
                return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
            return f"[{', '.join(items)}]"
        if is_tensor(tree):
            return self._render_tensor(read_leaf(tree, slot))
        if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
            return "{" + ", ".join(f"{key!r}: {self.render(item, f'{slot}.{key}')}" for key, item in tree.items()) + "}"
        return render_plain(tree)

    def _render_tensor(self, leaf: Leaf) -> str:
        if not _SLOT.fullmatch(leaf.slot):
            raise UnknownArgumentError(f"the name {leaf.slot[:60]!r}")
        self.tensors[leaf.slot] = leaf
        name = f'given["{leaf.slot}"]'
        return f"{name}.clone()" if self.operation.writes_in_place and leaf.requires_grad else name


def write_repro(program: Program, name: str, folder: Path) -> Path:
    """Write the script and its tensors there. UsageError where a call cannot be made again from its record."""
    operation = next((call for call in program.calls() if call.name == name), None)
    if operation is None:
        advice = suggest(name, [call.name for call in program.calls()]) or "`tensorprobe show` lists them."
        raise UsageError(f"{program.rank.name} has no forward call {name!r}: {advice}")
    try:
        text, tensors = _render(program, operation)
    except (UnknownArgumentError, UnknownFunctionError) as error:
        raise UsageError(f"{name} cannot be made into a script: {error}") from error
    content = io.BytesIO()  # what torch writes itself does not say why it fails
    torch.save({name: _load(program, leaf) for name, leaf in tensors.items()}, content)
    with writing(folder):
        make_folder(folder)
        with open_whole(folder / TENSORS) as file:
            file.write(content.getbuffer())
        with open_whole(folder / SCRIPT) as file:
            file.write(text.encode())
    return folder / SCRIPT


def _render(program: Program, operation: Operation) -> tuple[str, Mapping[str, Leaf]]:
    find_function(operation.prefix, operation.op)
    script = _Script(operation)
    args = [script.render(item, f"input.{index}") for index, item in enumerate(operation.arguments)]
    args += [f"{_word(key)}={script.render(item, f'kwargs.{key}')}" for key, item in operation.keywords.items()]
    arriving, departing = backward_leaves(program.gradients.get(operation.backward_name, {}))
    arriving = {slot: leaf for slot, leaf in arriving.items() if slot.count(".") == 1}
    results = {leaf.slot: leaf for leaf in operation.outputs if leaf.is_floating and leaf.slot.count(".") == 1}
    compared = {**results, **{f"gradient of {slot}": leaf for slot, leaf in departing.items()}}
    draws = dict(_draws(operation))
    tensors = {**script.tensors, **draws}
    tensors.update((f"arriving {slot}", leaf) for slot, leaf in arriving.items())
    tensors.update((f"recorded {slot}", leaf) for slot, leaf in compared.items())
    before = '    torch.set_rng_state(saved["generator_state"])\n' if draws else ""
    after = ""
    if operation.writes_in_place and operation.arguments and is_tensor(operation.arguments[0]):
        before += f"    target = {args[0]}\n"
        args[0], after = "target", "    result = target if result is None else result\n"
    text = _TEMPLATE.format(
        title=f"{operation.name}, recorded in {program.rank.name}.",
        setting="" if uses_mkldnn(program) else "torch.backends.mkldnn.set_flags(False)\n",
        tensors=TENSORS,
        trained=[slot for slot, leaf in script.tensors.items() if leaf.requires_grad and leaf.is_floating],
        precisions="(False,)" if draws else "(False, True)",  # in float64 other random numbers would be drawn
        given=list(script.tensors),
        before=before,
        cast="".join(_casts(operation)),
        after=after,
        call=f"{_OWNERS[operation.prefix]}.{_word(operation.op)}({', '.join(args)})",
        backward=_BACKWARD.format(arriving=list(arriving)) if arriving else "",
        compared=list(compared),
    )
    return text, tensors


def _casts(operation: Operation) -> Iterator[str]:
    """The regions of autocast that the call was made in; in float64 nothing is cast."""
    casts = operation.fields.get("autocast")
    for device, dtype in casts.items() if isinstance(casts, dict) else ():
        name = f"torch.{_word(str(dtype))}"
        yield f"    with torch.autocast({_word(str(device))!r}, {name}, enabled=not is_wide):\n    "


def _draws(operation: Operation) -> Iterator[tuple[str, Leaf]]:
    for leaf in iter_leaves(operation.fields.get("generator_state"), "generator_state"):
        yield "generator_state", leaf


def render_plain(leaf: Any) -> str:
    """An argument that is no tensor."""
    if not isinstance(leaf, dict):
        return _number(leaf)
    kind, value = leaf["type"], leaf.get("value")
    if kind in ("int", "bool", "float") or kind.startswith("numpy."):
        return _number(value)
    if kind == "str" and isinstance(value, str) and not value.endswith("…"):
        return repr(value)
    if kind == "slice" and isinstance(value, list):
        return f"slice({', '.join(map(_number, value))})"
    if kind == "ellipsis":
        return "..."
    if kind == "torch.dtype" and _WORD.fullmatch(str(value)):
        return f"widen({value})"
    if kind in ("torch.memory_format", "torch.layout") and _WORD.fullmatch(str(value)):
        return str(value)
    if kind == "torch.device":
        return repr("cpu")
    if kind == "torch.Size" and isinstance(value, list):
        return f"torch.Size([{', '.join(map(_number, value))}])"
    raise UnknownArgumentError(f"an argument of type {kind[:60]}")


def _number(value: Any) -> str:
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
    if isinstance(value, str) and len(value) < 1000:
        return repr(value)
    raise UnknownArgumentError("an argument that is not known")


def _word(text: str) -> str:
    """A name that goes into the script as it is: letters and dots, whatever a dump says."""
    if not _WORD.fullmatch(text):
        raise UnknownArgumentError(f"the name {text[:60]!r}")
    return text


def _load(program: Program, leaf: Leaf) -> torch.Tensor:
    try:
        return lay_out(RecordedTensors(program.rank, torch.device("cpu")).load(leaf), leaf)
    except MissingContentError as error:
        raise UsageError(f"the call cannot be made into a script: {error}") from error
