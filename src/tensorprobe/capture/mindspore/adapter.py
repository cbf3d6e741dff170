"""MSAdapter: programs whose torch is in truth MindSpore. Where their functions are found, and what their modules hold.

What such a program calls `torch` stands for another package, module by module (`torch.nn.functional` for
`msadapter.nn.functional`): the user's calls are made through the one, those of the layers through the other, so both
are replaced. A stand-in lists nothing, and keeps for ever what it has once been asked for: names are taken from the
real module, and the stand-ins are asked before anything is replaced.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from mindspore import Tensor
from mindspore.ops import Primitive

from tensorprobe.capture.context import is_adapter_loaded
from tensorprobe.capture.mindspore.api_name import ApiOwner, is_computing, tensor_methods
from tensorprobe.capture.mindspore.dialect import Dialect, present, types_in

_STAND_IN = "torch"
_NPU = "torch_npu"
_WRAPPER = "DistributedDataParallel"
_COMPUTING = (".ops", ".nn.functional")  # the parts of the package whose functions take or return tensors
_CREATING = ("tensor", "relu_")  # functions of the package itself that do so
_PLACES = (("Functional", ".nn.functional"), ("Torch", ""), ("Torch", ".ops"))
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
_COLLECTIVES = (
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
# Files that only pass calls on, and parts that make calls of their own: as in capture/torch.
_NOISE = ("nn/modules/module.py", "nn/functional.py", "_tensor.py", "ops/", "proxy.py", "utils/_contextlib.py")
_CALLERS = (
    ("optim/", "optimizer"),
    ("distributed/", "distributed"),
    ("nn/parallel/", "distributed"),
    ("nn/utils/clip_grad.py", "clipping"),
    ("amp/", "amp"),
    ("utils/data/", "dataloader"),
    ("nn/modules/", None),
)


def adapter_dialect() -> Dialect | None:
    """How programs for MSAdapter are written, where torch is MSAdapter's; None elsewhere."""
    return _make_dialect() if is_adapter_loaded() else None


@cache
def _make_dialect() -> Dialect:
    layers = importlib.import_module("torch.nn")
    return Dialect(
        name="mindtorch",
        module_prefix="Module",
        module_type=layers.Module,
        module_type_name="torch.nn.Module",
        owners=adapter_owners,
        children=lambda module: module._modules,
        unwrap=lambda module: module.module if type(module).__name__ == _WRAPPER else None,
        parameters=lambda module: present(module._parameters),
        buffers=lambda module: present(module._buffers),
        primitives=lambda module: {name: value for name, value in vars(module).items() if isinstance(value, Primitive)},
        layer_of=layer_of,
        random_types=types_in(layers),
        is_noise=is_noise,
        caller_of=caller_of,
        versions=describe_versions,
    )


def layer_of(module: Any) -> str | None:
    """The class of a layer of MSAdapter's library that is made of no others; None for all other modules."""
    layers, kind = importlib.import_module("torch.nn"), type(module)
    is_of_library = kind.__module__.startswith(layers.Module.__module__.rpartition(".")[0] + ".")
    is_container = kind is layers.Module or isinstance(module, types_in(layers, _CONTAINERS))
    return kind.__name__ if is_of_library and not is_container and not module._modules else None


def explain_foreign(model: Any) -> str:
    """What to do with a model that is none of this framework, as the end of a message; empty for most things."""
    roots = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if is_adapter_loaded():
        return ": with MSAdapter the modules of torch are recorded, not cells" if "mindspore" in roots else ""
    if "msadapter" in roots:
        return ": PyTorch was imported before msadapter, so that torch is not the adapter here; import msadapter first"
    if _STAND_IN in roots:
        return ", which is a model of PyTorch: use tensorprobe.pytorch, or import msadapter before torch"
    return ""


def adapter_owners() -> list[ApiOwner]:
    """Where the functions of torch are found; nothing of them may be replaced when it is asked."""
    return _make_owners(sys.modules.get(_NPU))


@cache
def _make_owners(npu: types.ModuleType | None) -> list[ApiOwner]:
    owners: list[ApiOwner] = []
    for prefix, part in _PLACES:
        names = tuple(_functions(_real_module(part), prefix))
        owners += [ApiOwner(prefix, place, names) for place in _modules(part)]
    for place in _modules(".distributed"):
        owners.append(ApiOwner("Distributed", place, tuple(name for name in _COLLECTIVES if hasattr(place, name))))
    if npu is not None:
        owners.append(ApiOwner("NPU", npu, tuple(_npu_functions(npu))))
    owners.append(ApiOwner("Tensor", Tensor, tuple(tensor_methods(Tensor))))
    # What backward() computes before it begins is not the program's.
    owners.append(ApiOwner("Torch", _real_module(".autograd"), ("_make_grads",), "autograd."))
    for owner in owners:
        for name in owner.names:
            getattr(owner.owner, name)  # what a stand-in keeps from now on is the original
    return owners


def is_noise(path: str) -> bool:
    """Is this source file part of how MSAdapter calls things, of no use in a stack?"""
    inside = _inside(path)
    return inside is not None and inside.startswith(_NOISE)


def caller_of(path: str) -> str | None:
    """Which part of MSAdapter makes calls of its own in this source file; "" where it passes on those of others."""
    inside = _inside(path)
    if inside is None:
        return None
    return next((caller for start, caller in _CALLERS if inside.startswith(start)), "")


def describe_versions() -> dict[str, str]:
    """The version of the package: the one it gives as its own is another."""
    name = _real_module("").__name__
    try:
        return {name: importlib.metadata.version(name)}
    except importlib.metadata.PackageNotFoundError:
        return {name: str(getattr(_real_module(""), "__version__", "unknown"))}


def _real_module(part: str) -> types.ModuleType:
    """What `torch` + part stands for; itself, where torch stands for nothing else."""
    package = importlib.import_module("torch.nn").Module.__module__.partition(".")[0]
    return importlib.import_module(package + part)


def _modules(part: str) -> list[types.ModuleType]:
    """The stand-in and the real module, or the only one. One that the program has not imported yet is imported here:
    made while functions are replaced, it would keep the replacements."""
    stand_in, real = importlib.import_module(_STAND_IN + part), _real_module(part)
    return [real] if stand_in is real else [stand_in, real]


def _functions(module: types.ModuleType, prefix: str) -> Iterator[str]:
    package = module.__name__.partition(".")[0]
    starts = tuple(package + part for part in _COMPUTING)
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, types.FunctionType) or not is_computing(prefix, name):
            continue
        if value.__module__.startswith(starts) or (value.__module__ == package and name in _CREATING):
            yield name


def _npu_functions(module: types.ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        is_public = not name.startswith("_") or name.startswith("_npu_")
        if is_public and isinstance(value, types.FunctionType) and is_computing("NPU", name):
            yield name


def _inside(path: str) -> str | None:
    """A source file of the package by its path there; None for others."""
    module = sys.modules.get("msadapter")
    folder = getattr(module, "__path__", [None])[0]
    if folder is None or not path.startswith(folder + os.sep):
        return None
    return path[len(folder) + 1 :]
