"""`convert_weight`: the weights of a network of one framework, for the same network in the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from tensorprobe.migrator.converted_weight import ConvertedWeights
    from tensorprobe.store.weight_file import StoredWeight

_FRAMEWORKS = {"pytorch": "torch", "mindspore": "mindspore"}
_OTHER = {"pytorch": "mindspore", "mindspore": "pytorch"}


def convert_weight(
    source: Any,
    target: Any = None,
    *,
    output: str | Path | None = None,
    load: bool = False,
    mapping: Mapping[str, str] | None = None,
    to: str | None = None,
) -> ConvertedWeights:
    """The weights of `source` under the names, and in the layouts, of `target`.

    source   a torch.nn.Module, its state_dict or a file of it (.pt, .pth, .bin, .safetensors); a mindspore.nn.Cell, a
             dictionary of its parameters or a checkpoint (.ckpt)
    target   the network that they are for, or what can be a source. Without it names are converted by the classes of
             the layers, which a Module or a Cell knows; of a bare dictionary what had to be assumed is in the report
    output   a file to write them into: .ckpt for MindSpore, .pt or .pth for PyTorch
    load     put them into the target
    mapping  names of the source and names of the target that belong together, before all else
    to       "mindspore" or "pytorch", where there is no target; otherwise it is the other framework

    The result is true if every weight found its place; `print(result.report)` says what did not, and why.
    """
    from tensorprobe.compare.weight_map import map_weights, name_weights
    from tensorprobe.migrator.converted_weight import ConvertedWeights

    weights, framework = _read(source, "source")
    if target is None:
        into = _checked(to) if to is not None else _OTHER[framework]
        if load:
            raise UsageError("convert_weight(load=True) needs a target: the Cell or Module to load into")
        if mapping:
            raise UsageError("convert_weight(mapping=...) needs a target whose names it can speak of")
        rows = name_weights([one.weight for one in weights], framework) if into != framework else _keep(weights)
    else:
        others, into = _read(target, "target")
        _check_names(mapping, weights, others)
        sides = [[one.weight for one in side] for side in (weights, others)]
        rows = map_weights(sides[0], sides[1], (framework, into), mapping)
    result = ConvertedWeights(into, tuple(rows), {one.weight.name: one.read for one in weights})
    if load:
        result.load_into(target)
    if output is not None:
        result.save(output)
    return result


def _read(value: Any, what: str) -> tuple[list[StoredWeight], str]:
    """All weights, and whose they are."""
    if isinstance(value, (str, Path)):
        return _read_path(Path(value))
    framework = _framework_of(value)
    if framework is None:
        raise UsageError(
            f"{what} is a {type(value).__name__}; it must be a torch.nn.Module, a mindspore.nn.Cell, a dictionary of "
            "names and tensors, or the path of a .pt, .pth, .bin, .safetensors or .ckpt file"
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
    from tensorprobe.compare.weight_map import MAPPED, WeightRow

    return [WeightRow(one.weight, one.weight, MAPPED, "same name") for one in weights]


def _check_names(mapping: Mapping[str, str] | None, source: list[StoredWeight], target: list[StoredWeight]) -> None:
    """A name that is nowhere would be passed over in silence."""
    from difflib import get_close_matches

    for side, names, known in (
        ("source", list(mapping or ()), [one.weight.name for one in source]),
        ("target", list((mapping or {}).values()), [one.weight.name for one in target]),
    ):
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, 3, 0.3)
                hint = f"; nearest: {', '.join(near)}" if near else ""
                raise UsageError(f"mapping speaks of {name!r}, which the {side} does not have{hint}")
