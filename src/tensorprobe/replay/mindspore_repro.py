"""A recorded call of MindSpore as a script: a function, a method, or a primitive as it was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any

import mindspore
import numpy as np
import torch
from mindspore import context

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.mindspore_function import (
    check_known,
    count_call_arguments,
    find_dtype_name,
    find_named,
    find_primitive,
    invoke,
    make_tensor,
    meant_results,
    name_primitive,
)
from tensorprobe.replay.program import Operation, Program
from tensorprobe.replay.reason import describe_error
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.replay.repro_argument import (
    ArgumentWriter,
    Script,
    check_slot,
    check_word,
    find_results,
    make_title,
    write_results,
)
from tensorprobe.run.leaf import Leaf, backward_leaves, is_tensor, read_leaf

TENSORS = "tensors.npz"
_OWNERS = {
    "Functional": "mindspore.ops",
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "Tensor": "mindspore.Tensor",
}

_TEMPLATE = '''\
"""{title}
On its recorded inputs: what was recorded against the same call here, and against float64. Needs MindSpore alone."""
from pathlib import Path

import mindspore
import numpy

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
numpy.seterr(invalid="ignore")
saved = numpy.load(Path(__file__).with_name("{tensors}"))
trained, arriving, bfloat16 = {trained}, {arriving}, {bfloat16}
short = (mindspore.float16, mindspore.bfloat16, mindspore.float32)
widen = lambda dtype: mindspore.float64 if is_wide and dtype in short else dtype
read = lambda name: mindspore.Tensor(saved[name])
load = lambda name: read(name).astype(widen(mindspore.bfloat16 if name in bfloat16 else read(name).dtype))

{definition}
def call(given):
    result = {call}
    results = list(result) if isinstance(result, tuple) else [result]
    return {found}

def follow(*moved):
    found = call({{**given, **dict(zip(trained, moved))}})
    return tuple(found[name] for name in arriving) if len(arriving) > 1 else found[arriving[0]]

def show(name, tensor):
    tensor = tensor.astype(mindspore.float32) if tensor.dtype == mindspore.bfloat16 else tensor
    recorded, computed = saved["recorded " + name], tensor.asnumpy()
    note = ", the same bits" if recorded.tobytes() == computed.tobytes() else ""
    if computed.dtype == numpy.float64 != recorded.dtype and (computed == computed.astype(numpy.float32)).all():
        note = ", with no more digits than float32"
    wide = numpy.result_type(computed.dtype, numpy.float64)
    recorded, computed = recorded.astype(wide), computed.astype(wide)
    is_same = (recorded == computed) | (numpy.isnan(recorded) & numpy.isnan(computed))
    distance = numpy.abs(numpy.where(is_same, 0, recorded - computed)).max(initial=0)
    print(f"  {{name}}: largest difference {{distance:.3g}} of {{numpy.abs(computed).max(initial=0):.3g}}{{note}}")

for is_wide in {precisions}:
    print("recorded against float64:" if is_wide else "recorded against the same call here:")
    what = "this call"
    try:
        given = {{name: load(name) for name in {given}}}
        for name, tensor in call(given).items():
            show(name, tensor)
{backward}    except Exception as error:
        if not is_wide:
            raise
        print(f"  MindSpore does not compute {{what}} in float64 here: {{str(error).strip().splitlines()[0]}}")
{end}'''

_NOT_IN_FLOAT64 = ("LSTM",)
"""Primitives that are computed in float32 if they are given float64, with gradients that mean nothing (2.10)."""
_NO_FLOAT64 = """\
print("recorded against float64:\\n  MindSpore does not compute this call in float64 on a CPU")
"""

_BACKWARD = """\
        what, given = "its gradients", {name: load(name) for name in given}
        seeds = tuple(load("arriving " + name) for name in arriving)
        gradient = mindspore.ops.GradOperation(get_all=True, sens_param=True)(follow)
        found = gradient(*(given[name] for name in trained), seeds if len(seeds) > 1 else seeds[0])
        for name, tensor in zip(trained, found):
            show("gradient of " + name, tensor)
"""

_SET_ITEM = """\
def set_item(tensor, index, value):
    changed = tensor * 1 if tensor.dtype != mindspore.bool_ else tensor.copy()
    changed[index] = value
    return changed

"""

_TRIED_ELEMENTS = 1 << 24
"""A call that may return more is not tried when its script is made."""


def make_script(program: Program, operation: Operation) -> Script:
    """UnknownArgumentError or UnknownFunctionError where its record does not say enough."""
    _check_repeatable(operation)
    call = _write_call(operation)
    _try_call(program, operation)
    given = {check_slot(leaf.slot): leaf for leaf in operation.inputs}
    results = find_results(meant_results(operation))
    arriving, departing = _find_gradients(program, operation)
    arriving = {slot: leaf for slot, leaf in arriving.items() if slot in results and results[slot].is_floating}
    departing = {slot: leaf for slot, leaf in departing.items() if slot in given and arriving}
    compared = {**results, **{f"gradient of {slot}": leaf for slot, leaf in departing.items()}}
    tensors = {**given, **{f"arriving {slot}": leaf for slot, leaf in arriving.items() if departing}}
    tensors.update((f"recorded {slot}", leaf) for slot, leaf in compared.items())
    _check_dtypes(tensors.values())
    is_widened = check_known(operation) not in _NOT_IN_FLOAT64
    text = _TEMPLATE.format(
        title=make_title(operation.name, program.rank.name),
        tensors=TENSORS,
        trained=list(departing),
        arriving=list(arriving) if departing else [],
        bfloat16=[name for name, leaf in tensors.items() if leaf.dtype == "bfloat16"],
        definition=_SET_ITEM if operation.op == "__setitem__" else "",
        call=call,
        precisions="(False, True)" if is_widened else "(False,)",
        end="" if is_widened else _NO_FLOAT64,
        found=write_results(results),
        given=list(given),
        backward=_BACKWARD if departing else "",
    )
    return Script(text, tensors)


def write_tensors(file: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
    """Numpy has no bfloat16: float32 has all its numbers."""
    arrays = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in tensors.items()}
    np.savez(file, **{name: tensor.contiguous().numpy() for name, tensor in arrays.items()})


def _check_repeatable(operation: Operation) -> None:
    if operation.is_layer:
        raise UnknownFunctionError(
            f"{operation.op} is a layer, and a script makes one call of MindSpore. Record with PrecisionDebugger at "
            "level L1 or mix: there each call has its record"
        )
    if "generator" in operation.fields:
        raise UnknownArgumentError("it draws random numbers, and MindSpore does not tell how it came to them")


def _try_call(program: Program, operation: Operation) -> None:
    """A kernel is seen with what MindSpore makes of its arguments, and does not always take that. Whether there is a
    kernel is another question: there may be one where the script is run."""
    if operation.prefix != "Primitive" or _find_largest_result(operation) > _TRIED_ELEMENTS:
        return
    recorded = RecordedTensors(program.rank, torch.device("cpu"))
    mode = context.get_context("mode")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        invoke(operation, {leaf.slot: make_tensor(recorded.load(leaf)) for leaf in operation.inputs})
    except TypeError as error:
        raise UnknownArgumentError(f"MindSpore does not take its arguments again: {describe_error(error)}") from error
    except (RuntimeError, ValueError, MissingContentError):
        pass  # the script says it, or whoever reads the files
    finally:
        mindspore.set_context(mode=mode)


def _find_largest_result(operation: Operation) -> int:
    """More elements it cannot return: a dump may come from anyone, and ask for all the memory that there is."""
    waiting, largest = [*operation.arguments, *operation.keywords.values()], 1
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif is_tensor(node):
            largest *= max(read_leaf(node, "").element_count, 1)
        elif isinstance(node, dict) and isinstance(node.get("value"), int):
            largest *= max(abs(node["value"]), 1)
    return largest


def _check_dtypes(leaves: Iterable[Leaf]) -> None:
    for leaf in leaves:
        if leaf.dtype.startswith("float8"):
            raise UnknownArgumentError(f"numpy has no {leaf.dtype}, which {leaf.slot} is of")


def _find_gradients(program: Program, operation: Operation) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
    """Those that came to it and that it gave back; none where there are no files of them, as with task `replay`."""
    arriving, departing = backward_leaves(program.gradients.get(operation.backward_name, {}))
    if any(leaf.data_name is None for leaf in (*arriving.values(), *departing.values())):
        return {}, {}
    return arriving, {slot: leaf for slot, leaf in departing.items() if leaf.is_floating}


def _write_call(operation: Operation) -> str:
    name = check_word(check_known(operation))
    writer = ArgumentWriter(operation.tuples, lambda leaf: f'given["{check_slot(leaf.slot)}"]', _write_object)
    args = writer.write_all(operation.arguments, "input")
    keywords = writer.write_all(operation.keywords, "kwargs")
    if operation.prefix != "Primitive":
        find_named(operation)
        function = "set_item" if name == "__setitem__" else f"{_OWNERS[operation.prefix]}.{name}"
        return f"{function}({', '.join([*args, *keywords])})"
    kind = find_primitive(name)
    settings = writer.write_all(operation.settings, "settings")
    count = count_call_arguments(operation, kind)
    made = f"{name_primitive(name)}({', '.join(settings or args[count:])})"
    return f"{made}({', '.join([*args[:count], *keywords])})"


def _write_object(kind: str, value: Any) -> str:
    return f"widen(mindspore.{find_dtype_name(kind, value)})"
