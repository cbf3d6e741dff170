"""The parameters of a cell of MindSpore, read and written; what they are called elsewhere is not known here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn

from tensorprobe.errors import UsageError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.model.weight import Weight
from tensorprobe.store.checkpoint_file import check_checkpoint
from tensorprobe.store.layout import temporary_path
from tensorprobe.store.weight_file import StoredWeight

Array = np.ndarray[Any, Any]


def is_model(value: Any) -> bool:
    return isinstance(value, nn.Cell)


def read_model(model: Any) -> list[StoredWeight]:
    """All its parameters by their places in it, with the classes of the cells around each."""
    kinds = {path: type(cell).__name__ for path, cell in model.cells_and_names()}
    found = model.parameters_and_names()
    return [_stored(parameter.name, parameter, _kinds_around(path, parameter.name, kinds)) for path, parameter in found]


def read_values(values: Mapping[str, Any]) -> list[StoredWeight]:
    """Those of a dictionary, such as load_checkpoint returns, that are tensors."""
    return [_stored(name, value, ()) for name, value in values.items() if isinstance(value, Tensor)]


def read_file(path: Path) -> list[StoredWeight]:
    """A checkpoint of MindSpore."""
    check_checkpoint(path)
    try:
        content = mindspore.load_checkpoint(str(path))
    except Exception as error:  # whatever a damaged or foreign file makes of it
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"{path} cannot be read as a checkpoint: {reason}") from error
    return read_values(content)


def make_value(array: Array, dtype: str, name: str) -> Parameter:
    """A parameter of its own; kinds that numpy lacks come as float32."""
    tensor = Tensor(np.array(array, order="C"))
    wanted = getattr(mindspore, "bool_" if dtype == "bool" else dtype)
    return Parameter(tensor if tensor.dtype == wanted else tensor.astype(wanted), name=name)


def load_values(model: Any, values: Mapping[str, Any]) -> None:
    """Put values into a model; its other parameters stay as they are."""
    for _, parameter in model.parameters_and_names():
        value = values.get(parameter.name)
        if value is not None:
            parameter.set_data(Tensor(value.astype(parameter.dtype)))


def save_values(path: Path, values: Mapping[str, Any]) -> None:
    """As save_checkpoint writes them; whole or not at all."""
    temporary = temporary_path(path).with_suffix(".ckpt")
    content = [{"name": name, "data": value} for name, value in values.items()]
    try:
        mindspore.save_checkpoint(content, str(temporary))
        temporary.replace(path)
    except BaseException:
        for left in (temporary, temporary.with_suffix(".tmp")):  # MindSpore's own, on a full disk
            left.unlink(missing_ok=True)
        raise


def _stored(name: str, value: Tensor, kinds: tuple[str, ...]) -> StoredWeight:
    weight = Weight(name, tuple(value.shape), short_dtype(str(value.dtype)), kinds, memory=id(value))
    return StoredWeight(weight, _reader(value))


def _reader(value: Tensor) -> Callable[[], Array]:
    is_known = value.dtype != mindspore.bfloat16 and "Float8" not in str(value.dtype)
    return lambda: np.asarray(value.asnumpy() if is_known else value.astype(mindspore.float32).asnumpy())


def _kinds_around(path: str, name: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Only where a parameter is called by its place, but for its last part: a cell of its own may call its `w` `a`."""
    parts = path.split(".")
    found = [kinds.get(".".join(parts[:place])) for place in range(len(parts))]
    is_known = None not in found and parts[:-1] == name.split(".")[:-1]
    return tuple(kind for kind in found if kind is not None) if is_known else ()
