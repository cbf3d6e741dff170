"""`tensorprobe.save` and `tensorprobe.save_grad` as Python runs them, for the tensors of whichever framework the
program has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tensorprobe.capture.context import is_adapter_loaded
from tensorprobe.capture.numbered import NumberedFiles, TensorKind
from tensorprobe.capture.save_target import SaveTarget, no_gradient, no_tensor, read_target, wrong_data
from tensorprobe.model.tree import map_tree, named_children

files = NumberedFiles()
_disabled: dict[Callable[..., Any], Callable[..., Any]] = {}


def save_now(file: Any, data: Any, suffix: Any = None, output_mode: Any = "npy") -> None:
    """Save a tensor, or every tensor in a nesting of dict, list and tuple, as it is now."""
    _by_python(_save)(file, data, suffix, output_mode)


def save_grad_now(file: Any, data: Any, suffix: Any = "backward", output_mode: Any = "npy") -> Any:
    """Save the gradient of `data` when it comes. Returns `data`, to be passed on."""
    return _by_python(_save_grad)(file, data, suffix, output_mode)


def _save(file: Any, data: Any, suffix: Any, output_mode: Any) -> None:
    target = read_target("save", file, suffix, output_mode)
    kinds = loaded_kinds()
    types = tuple(one for kind in kinds for one in kind.types)
    is_nested = isinstance(data, (list, tuple, type(None))) or named_children(data) is not None
    if not isinstance(data, types) and not is_nested:
        raise wrong_data("save", type(data).__name__)
    found: list[str] = []

    def leaf(value: Any, path: str) -> None:
        kind = _kind_of(value, kinds)
        if kind is not None:
            found.append(path)
            files.save(kind, value, target, path)

    map_tree(data, target.name, leaf, types)
    if not found:
        files.say_once(no_tensor(target.name))


def _save_grad(file: Any, data: Any, suffix: Any, output_mode: Any) -> Any:
    target = read_target("save_grad", file, suffix, output_mode)
    kind = _kind_of(data, loaded_kinds())
    if kind is None or not isinstance(data, kind.differentiable):
        raise wrong_data("save_grad", type(data).__name__)
    try:
        is_watched = _watch(kind, data, target)
    except Exception as error:
        files.note_failure(f"the gradient of {target.name}", error)
    else:
        if not is_watched:
            files.say_once(no_gradient(target.name))
    return data


def loaded_kinds() -> list[TensorKind]:
    """The frameworks that the program has imported. Where torch is MSAdapter's, its tensors are MindSpore's."""
    kinds = []
    if "torch" in sys.modules and not is_adapter_loaded():
        from tensorprobe.capture.torch.numbered import kind as torch_kind

        kinds.append(torch_kind)
    if "mindspore" in sys.modules:
        from tensorprobe.capture.mindspore.numbered import kind as mindspore_kind

        kinds.append(mindspore_kind)
    return kinds


def _by_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as torch.compile leaves it to Python: it interrupts the graph for the call."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None or is_adapter_loaded():
        return function
    if function not in _disabled:
        _disabled[function] = dynamo.disable(function)
    return _disabled[function]


def _kind_of(value: Any, kinds: list[TensorKind]) -> TensorKind | None:
    return next((kind for kind in kinds if isinstance(value, kind.types)), None)


def _watch(kind: TensorKind, data: Any, target: SaveTarget) -> bool:
    def receive(gradient: Any) -> None:
        files.save(kind, gradient, target, target.name)

    return kind.watch_gradient(data, receive, files.leaves, target)
