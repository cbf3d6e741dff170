"""The naming grammar: what a record is called, and what the file of one of its tensors is called.

    Functional.linear.5.backward             an API call: prefix, name, index, direction
    Functional.linear.5.recompute            the same call, repeated by activation checkpointing
    Module.conv1.Conv2d.forward.0            a module call: prefix, path, class, direction, index
    Module.conv1.Conv2d.parameters_grad      the gradients of a module's parameters
    x2_grad.0.debug                          a single point: variable, index
    NN_Dense_1_backward                      an API call as api_dump writes it; NN is a layer of the framework
    Tensor___matmul___1_forward              the same; slots follow as `_input.0` and `_output`

API names and module paths may contain dots; all kinds are therefore read from the right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward", "recompute"]

LAYER_PREFIX = "NN"
"""A layer of the framework's own library, which api_dump records as one call."""
MODULE_PREFIXES = ("Module", "Cell")
PARAMETERS_GRAD = "parameters_grad"
GRADIENT_SUFFIX = "_grad"

FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"
RECOMPUTE: Direction = "recompute"
_DIRECTIONS: dict[str, Direction] = {"forward": FORWARD, "backward": BACKWARD, "recompute": RECOMPUTE}
_UNDERSCORED = re.compile(r"([A-Z][A-Za-z0-9]*)_(.+)_([0-9]+)_(forward|backward|recompute)", re.ASCII | re.DOTALL)
_UNSAFE_IN_FILE_NAMES = re.compile(r'[/\\:*?"<>|%\x00-\x1f\x7f\ud800-\udfff]')
_MAX_INDEX_DIGITS = 18
_MAX_FILE_NAME_BYTES = 240  # ext4 and NTFS end at 255; the suffix and a hash need room


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class ApiName:
    """One call of one API in one direction."""

    prefix: str
    name: str
    index: int
    direction: Direction
    separator: str = "."
    """An underscore in the names of api_dump."""

    def __str__(self) -> str:
        return f"{self.call}{self.separator}{self.direction}"

    @property
    def call(self) -> str:
        """`Functional.linear.5`: the name without its direction."""
        return f"{self.prefix}{self.separator}{self.name}{self.separator}{self.index}"


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class ModuleName:
    """One call of one module in one direction; the path of a root module is empty."""

    prefix: str
    path: str
    class_name: str
    direction: Direction
    index: int

    def __str__(self) -> str:
        return f"{module_stem(self.prefix, self.path, self.class_name)}.{self.direction}.{self.index}"


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes each take several times as long, and there are many
class ParametersGradName:
    """The parameter gradients of one module; they have no index, because its calls share them."""

    prefix: str
    path: str
    class_name: str

    def __str__(self) -> str:
        return f"{module_stem(self.prefix, self.path, self.class_name)}.{PARAMETERS_GRAD}"


@dataclass(frozen=True)
class DebugName:
    """One single-point save, or the gradient of one."""

    variable: str
    index: int

    def __str__(self) -> str:
        return f"{self.variable}.{self.index}.debug"


RecordName = ApiName | ModuleName | ParametersGradName | DebugName


def module_stem(prefix: str, path: str, class_name: str) -> str:
    """`Module.conv1.Conv2d`: what all records of one module begin with."""
    return f"{prefix}.{path}.{class_name}" if path else f"{prefix}.{class_name}"


def recompute_name(forward_name: str) -> str:
    """The record of a forward call's repetition.

    >>> recompute_name("Module.forward.Linear.forward.0")
    'Module.forward.Linear.recompute.0'
    """
    before, _, after = forward_name.rpartition(FORWARD)
    return f"{before}{RECOMPUTE}{after}"


def parse_name(text: str) -> RecordName:
    """Read a key of dump.json or debug.json; msprobe's `parameters_grad.0` is taken as `parameters_grad`."""
    parts = text.split(".")
    parsed = _parse_debug(parts) or _parse_module(parts) or _parse_api(parts) or _parse_underscored(text)
    if parsed is None:
        raise ValueError(f"{text!r} is not the name of a record")
    return parsed


def slot_file_name(slot_name: str, suffix: str) -> str:
    """The file of one tensor: its dotted name, made safe for every file system, and the suffix.

    >>> slot_file_name("Module.conv1.Conv2d.forward.0.input.0", "pt")
    'Module.conv1.Conv2d.forward.0.input.0.pt'
    """
    safe = _UNSAFE_IN_FILE_NAMES.sub(lambda found: f"%{ord(found[0]):02X}", slot_name)
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    encoded = safe.encode("utf-8", "backslashreplace")
    if len(encoded) > _MAX_FILE_NAME_BYTES:
        from hashlib import blake2b

        digest = blake2b(encoded, digest_size=8).hexdigest()
        safe = encoded[: _MAX_FILE_NAME_BYTES - 20].decode("utf-8", "ignore") + "~" + digest
    return f"{safe}.{suffix}"


def _parse_debug(parts: list[str]) -> DebugName | None:
    if len(parts) >= 3 and parts[-1] == "debug" and is_index(parts[-2]):
        return DebugName(".".join(parts[:-2]), int(parts[-2]))
    return None


def _parse_module(parts: list[str]) -> ModuleName | ParametersGradName | None:
    if parts[0] not in MODULE_PREFIXES:
        return None
    prefix = parts[0]
    if len(parts) >= 4 and parts[-2] in _DIRECTIONS and is_index(parts[-1]):
        return ModuleName(prefix, ".".join(parts[1:-3]), parts[-3], _DIRECTIONS[parts[-2]], int(parts[-1]))
    if len(parts) >= 4 and parts[-2] == PARAMETERS_GRAD and is_index(parts[-1]):
        parts = parts[:-1]
    if len(parts) >= 3 and parts[-1] == PARAMETERS_GRAD:
        return ParametersGradName(prefix, ".".join(parts[1:-2]), parts[-2])
    return None


def _parse_api(parts: list[str]) -> ApiName | None:
    if len(parts) >= 4 and parts[-1] in _DIRECTIONS and is_index(parts[-2]):
        return ApiName(parts[0], ".".join(parts[1:-2]), int(parts[-2]), _DIRECTIONS[parts[-1]])
    return None


def _parse_underscored(text: str) -> ApiName | None:
    found = _UNDERSCORED.fullmatch(text)
    if found is None or not is_index(found[3]):
        return None
    prefix, name, index, direction = found.groups()
    return ApiName(prefix, name, int(index), _DIRECTIONS[direction], "_")


def is_index(text: str) -> bool:
    """A count that a program can have reached; Python refuses to read a number of thousands of digits.

    >>> is_index("12"), is_index("²"), is_index("1" * 5000)
    (True, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_INDEX_DIGITS
