"""What differs between programs written for MindSpore and those written for PyTorch that MSAdapter runs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from tensorprobe.capture.mindspore.api_name import ApiOwner, mindspore_owners

NoteFailure = Callable[[str, BaseException], None]


@dataclass(frozen=True)
class Dialect:
    """One way of writing programs."""

    name: str
    """The framework, in dump.json."""
    module_prefix: str
    module_type: type
    module_type_name: str
    owners: Callable[[], list[ApiOwner]]
    """The same list as long as there are no others."""
    children: Callable[[Any], Mapping[str, Any]]
    """The modules that one module holds, by their names; None for a place that holds nothing."""
    parameters: Callable[[Any], dict[str, Any]]
    """The parameters of one module, without those of the modules in it."""
    buffers: Callable[[Any], dict[str, Any]]
    primitives: Callable[[Any], dict[str, Any]]
    """The Primitive objects that one module holds."""
    layer_of: Callable[[Any], str | None]
    """The class of a module that is a layer of the framework's own library; None for all others."""
    unwrap: Callable[[Any], Any] = lambda _: None
    """What a module wraps that only carries a model, and has no part in the names; None for all others."""
    call_name: str = "__call__"
    """The method of the module type that runs a module."""
    random_types: tuple[type, ...] = ()
    """Modules that draw from a random generator while they train."""
    is_noise: Callable[[str], bool] = lambda _: False
    """Is a source file part of how a package beside MindSpore calls things?"""
    caller_of: Callable[[str], str | None] = lambda _: None
    """Which part of such a package makes calls of its own in a source file."""
    versions: Callable[[], dict[str, str]] = dict
    """Of what stands between the program and MindSpore."""

    def walk(self, model: Any, note_failure: NoteFailure) -> Iterator[tuple[str, Any]]:
        """All modules of a model, each with its path. No method of a module is called: it may be the program's, and
        raise; and a tree may be deeper than Python's stack."""
        seen: set[int] = set()
        pending = [("", model)]
        while pending:
            path, module = pending.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            try:
                inner = self.unwrap(module)
                children = list(self.children(module).items()) if inner is None else []
            except Exception as error:
                note_failure(f"{path or 'the model'}, with the modules in it,", error)
                continue
            if inner is not None:
                pending.append((path, inner))
                continue
            yield path, module
            found = [(f"{path}.{name}".strip("."), child) for name, child in reversed(children)]
            pending += [(inside, child) for inside, child in found if child is not None]


def _children_of(cell: nn.Cell) -> dict[str, nn.Cell]:
    """Without the cells that `recompute()` puts into others: they hand on the calls of the cell that they are in."""
    return {name: inner for name, inner in cell._cells.items() if name != "_recompute_cell"}


_RANDOM = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "RReLU")


def types_in(module: Any, names: Iterable[str] = _RANDOM) -> tuple[type, ...]:
    """Those of these types that a module has."""
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def present(tensors: dict[str, Any]) -> dict[str, Any]:
    """Without the places that hold nothing (`has_bias=False`)."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


_LAYER_PACKAGES = ("mindspore.nn.layer.", "mindspore.nn.loss.", "mindspore.mint.nn.")
_CONTAINERS = (nn.SequentialCell, nn.CellList, *types_in(nn, ["CellDict"]))
_COMPOSED = ("Conv2dBnAct", "DenseBnAct", "MultiheadAttention", "TimeDistributed", "Transformer")
"""How the classes begin that are made of layers. What other layers hold are parts of them, such as an activation."""


def _layer_of(cell: nn.Cell) -> str | None:
    """Optimizers and training wrappers are cells of the library too, and no layers."""
    kind = type(cell)
    is_of_library = f"{kind.__module__}.".startswith(_LAYER_PACKAGES)  # mint.nn has some in its own `__init__`
    if not is_of_library or isinstance(cell, _CONTAINERS):
        return None
    return None if cell._cells and kind.__name__.startswith(_COMPOSED) else kind.__name__


MINDSPORE = Dialect(
    name="mindspore",
    module_prefix="Cell",
    module_type=nn.Cell,
    module_type_name="mindspore.nn.Cell",
    owners=mindspore_owners,
    children=_children_of,
    parameters=lambda cell: present(cell._params),
    buffers=lambda cell: present(getattr(cell, "_buffers", None) or {}),
    primitives=lambda cell: dict(getattr(cell, "_primitives", None) or {}),
    layer_of=_layer_of,
    random_types=types_in(nn),
)
