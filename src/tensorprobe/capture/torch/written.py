"""What a call writes to without returning it: running statistics, the parameters and states of an optimizer.

Found once per function: by its name, or by the schema of its operator. Such writes need not give a tensor a new
version, so that nobody else notices them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_DATA = json.loads(Path(__file__).with_name("api.json").read_text())
_BY_NAME = _DATA["writes_besides"]
_BY_SCHEMA = tuple(f"Torch.{beginning}" for beginning in _DATA["writes_besides_beginnings"])

Argument = tuple[int, str]
"""Its place and its name."""


@dataclass(frozen=True, slots=True)
class Written:
    """The arguments that a function writes to, besides what it returns."""

    arguments: tuple[Argument, ...]
    condition: Argument | None = None
    """It writes only where this argument is true."""
    default: bool = False
    """What that argument is where it is not given."""

    def iter_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that a call has written to, by the names of their places."""
        if self.condition is not None and not _value(self.condition, args, kwargs, self.default)[1]:
            return
        for argument in self.arguments:
            yield from _tensors(*_value(argument, args, kwargs, None))


def find_written(prefix: str, name: str) -> Written | None:
    """`Functional`, `batch_norm`; None for a function that writes to nothing but what it returns."""
    if prefix == "Ops" and name.startswith("aten."):
        prefix, name = "Torch", name.split(".")[1]
    stem = f"{prefix}.{name}"
    known = _BY_NAME.get(stem)
    if known is not None:
        condition = known["if"]
        arguments = tuple((place, text) for text, place in known["arguments"].items())
        return Written(arguments, (condition["place"], condition["name"]), condition["default"])
    if stem.startswith(_BY_SCHEMA) and stem.endswith("_"):
        found = _declared(name)
        return Written(found) if found else None
    return None


def _declared(name: str) -> tuple[Argument, ...]:
    """The arguments that the schema of an operator of torch says it writes to, in any of its forms."""
    found = {
        (place, argument.name)
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        if not schema.overload_name.endswith("out")
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    return tuple(sorted(found))


def _value(argument: Argument, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any) -> tuple[str, Any]:
    place, name = argument
    if place < len(args):
        return f"input.{place}", args[place]
    return f"kwargs.{name}", kwargs.get(name, default)


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors(f"{path}.{number}", item)
