"""`convert_weight`: the weights of a network of one framework, for the same network in the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorprobe.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from tensorprobe.migrator.converted_weight import ConvertedWeights
    from tensorprobe.migrator.weight_mapping import WeightMapping
    from tensorprobe.store.weight_file import StoredWeight

Array = np.ndarray[Any, Any]
_FRAMEWORKS = {"pytorch": "torch", "mindspore": "mindspore"}
_OTHER = {"pytorch": "mindspore", "mindspore": "pytorch"}


def convert_weight(
    source: Any,
    target: Any = None,
    *,
    output: str | Path | None = None,
    load: bool = False,
    mapping: WeightMapping | None = None,
    to: str | None = None,
    dumps: tuple[str | Path, str | Path] | None = None,
) -> ConvertedWeights:
    """The weights of `source` under the names, and in the layouts, of `target`.

    source   a torch.nn.Module, its state_dict or a file of it (.pt, .pth, .bin, .safetensors); a mindspore.nn.Cell, a
             dictionary of its parameters or a checkpoint (.ckpt); a dictionary of numpy arrays
    target   the network that they are for, or what can be a source. Without it names are converted by the classes of
             the layers, which a Module or a Cell knows; of a bare dictionary what had to be assumed is in the report
    output   a file to write them into: .ckpt for MindSpore, .pt or .pth for PyTorch
    load     put them into the target
    mapping  names of the source and names of the target that belong together, before all else: weights, or layers with
             all that is below them; a `*` is one part of a name; a list of names is one weight cut into several
    to       "mindspore" or "pytorch", where there is no target; otherwise it is the other framework
    dumps    a recorded step of the source's network and one of the target's, for what names and shapes leave open

    The result is true if every weight found its place; `print(result.report)` says what did not, and why. What has more
    than one place is left out, and the report lists the choices. The order of the weights decides nothing.
    """
    from tensorprobe.migrator.converted_weight import ConvertedWeights

    weights, framework = _read(source, "source")
    if target is None:
        into = _checked(to) if to is not None else _other(framework, source)
        _check_without_target(load, mapping, dumps)
        rows = _name(weights, framework) if into != framework else _keep(weights)
    else:
        others, into = _read(target, "target")
        rows = _map((weights, others), (framework, into), mapping, dumps)
    result = ConvertedWeights(into, tuple(rows), {one.weight.name: one.read for one in weights})
    if load:
        result.load_into(target)
    if output is not None:
        result.save(output)
    return result


def _check_without_target(load: bool, mapping: WeightMapping | None, dumps: Any) -> None:
    if load:
        raise UsageError("convert_weight(load=True) needs a target: the Cell or Module to load into")
    if mapping:
        raise UsageError("convert_weight(mapping=...) needs a target whose names it can speak of")
    if dumps:
        raise UsageError("convert_weight(dumps=...) needs a target: the dumps say which of its weights are meant")


def _name(weights: list[StoredWeight], framework: str) -> list[Any]:
    """The names that they have in the other framework."""
    from tensorprobe.migrator.weight_map import name_weights

    return list(name_weights([one.weight for one in weights], framework))


def _map(
    stored: tuple[list[StoredWeight], list[StoredWeight]],
    frameworks: tuple[str, str],
    mapping: WeightMapping | None,
    dumps: Any,
) -> list[Any]:
    """Which weight of the source is which of the target."""
    from tensorprobe.migrator.weight_map import map_weights
    from tensorprobe.migrator.weight_record import pair_recorded

    source, target = ([one.weight for one in side] for side in stored)
    recorded = pair_recorded(*_two(dumps)) if dumps is not None else None
    return list(map_weights(source, target, frameworks, mapping, recorded))


def _read(value: Any, what: str) -> tuple[list[StoredWeight], str]:
    """All weights, and whose they are."""
    from tensorprobe.migrator.weight_name import named_by

    if isinstance(value, (str, Path)):
        return _read_path(Path(value))
    if isinstance(value, Mapping) and value and all(isinstance(one, np.ndarray) for one in value.values()):
        arrays = [_stored(str(name), array) for name, array in value.items()]
        return arrays, named_by([one.weight for one in arrays])
    framework = _framework_of(value)
    if framework is None:
        raise UsageError(
            f"{what} is a {type(value).__name__}; it must be a torch.nn.Module, a mindspore.nn.Cell, a dictionary of "
            "names and tensors or numpy arrays, or the path of a .pt, .pth, .bin, .safetensors or .ckpt file"
        )
    reader = weight_module(framework)
    if isinstance(value, Mapping):
        return _some(reader.read_values(value), what), framework
    if not reader.is_model(value):
        raise UsageError(f"{what} is a {type(value).__name__}, and no module, cell or dictionary of tensors")
    return _some(reader.read_model(value), what), framework


def _read_path(path: Path) -> tuple[list[StoredWeight], str]:
    from tensorprobe.store.weight_file import SUFFIXES, read_weight_file

    if path.suffix == ".ckpt":
        if not path.is_file():
            raise UsageError(f"{path} is no file")
        return _some(weight_module("mindspore").read_file(path), str(path)), "mindspore"
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path} is none of {', '.join((*SUFFIXES, '.ckpt'))}")
    return _some(read_weight_file(path), str(path)), "pytorch"


def _stored(name: str, array: Array) -> StoredWeight:
    from tensorprobe.model.weight import Weight
    from tensorprobe.store.weight_file import StoredWeight

    return StoredWeight(Weight(name, array.shape, str(array.dtype)), lambda: array)


def _other(framework: str, source: Any) -> str:
    """Arrays have no framework; a name such as gamma says whose they are, the lack of one says nothing."""
    if isinstance(source, Mapping) and framework == "pytorch" and _framework_of(source) is None:
        raise UsageError('a dictionary of numpy arrays has no framework: pass a target, or to="mindspore" or "pytorch"')
    return _OTHER[framework]


def _two(dumps: Any) -> tuple[str | Path, str | Path]:
    if not isinstance(dumps, (tuple, list)) or len(dumps) != 2:
        raise UsageError(f"dumps={dumps!r} must be two: the dump of the source's network and that of the target's")
    return dumps[0], dumps[1]


def _some(weights: list[StoredWeight], what: str) -> list[StoredWeight]:
    if not weights:
        raise UsageError(f"{what} has no weights")
    return weights


def _framework_of(value: Any) -> str | None:
    """By the classes that it, or its first tensor, is made of: no framework is imported for it."""
    items = value.values() if isinstance(value, Mapping) else (value,)
    for item in items:
        roots = {kind.__module__.partition(".")[0] for kind in type(item).__mro__}
        for framework, package in _FRAMEWORKS.items():
            if package in roots:
                return framework
    return None


def weight_module(framework: str) -> ModuleType:
    """The part that speaks with a framework, which must be installed."""
    from importlib import import_module

    package = _FRAMEWORKS[framework]
    try:
        return import_module(f"tensorprobe.capture.{package}.weight")
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UsageError(f"this needs {package}, which is not installed") from None


def _checked(framework: str) -> str:
    if framework not in _FRAMEWORKS:
        raise UsageError(f"to={framework!r} is none of {', '.join(map(repr, _FRAMEWORKS))}")
    return framework


def _keep(weights: list[StoredWeight]) -> list[Any]:
    from tensorprobe.model.weight_row import MAPPED, WeightRow

    return [WeightRow(one.weight, one.weight, MAPPED, "same name") for one in weights]
