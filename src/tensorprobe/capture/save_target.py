"""What the arguments of `tensorprobe.save` and `tensorprobe.save_grad` ask for, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tensorprobe.errors import UsageError

OUTPUT_MODES = ("npy", "print")
PRINT_MARK = "_TS_SAVE_NAME:"
"""What a name is announced by in the output, and in the files of MindSpore's Print."""

_SIGNATURES = {
    "save": "save(file, data, suffix=None, output_mode='npy')",
    "save_grad": "save_grad(file, data, suffix='backward', output_mode='npy')",
}


@dataclass(frozen=True)
class SaveTarget:
    """Where the tensors of one call go."""

    folder: str
    name: str
    suffix: str | None
    is_print: bool

    def title(self, path: str) -> str:
        """The name of a tensor, without its number: `dd.k2.1.0_suffix`."""
        return f"{path}_{self.suffix}" if self.suffix else path


def read_target(function: str, file: Any, suffix: Any, output_mode: Any) -> SaveTarget:
    """The arguments that `save` and `save_grad` share.

    >>> read_target("save", "./out/x.npy", None, "npy")
    SaveTarget(folder='./out', name='x', suffix=None, is_print=False)
    """
    if not isinstance(file, (str, os.PathLike)):
        raise wrong_argument(function, f"file is a path, not {file!r}")
    path = os.fspath(file)
    if not isinstance(path, str):
        raise wrong_argument(function, f"file is a path of text, not {path!r}")
    folder, name = os.path.split(path)
    name = name.removesuffix(".npy")
    if not name:
        raise wrong_argument(function, f"file ends in the name of the data, such as './out/dense', not {path!r}")
    if suffix is not None and not isinstance(suffix, str):
        raise wrong_argument(function, f"suffix is a text or None, not {suffix!r}")
    if output_mode not in OUTPUT_MODES:
        raise wrong_argument(function, f"output_mode is 'npy' or 'print', not {output_mode!r}")
    return SaveTarget(folder or ".", name, suffix, output_mode == "print")


def wrong_argument(function: str, text: str) -> UsageError:
    return UsageError(f"{_SIGNATURES[function]}: {text}")


def wrong_data(function: str, data_type: str) -> UsageError:
    """For data that is neither a tensor nor holds any."""
    wanted = "data is a tensor of PyTorch or MindSpore"
    nested = ", or a dict, list or tuple of them" if function == "save" else ""
    return wrong_argument(function, f"{wanted}{nested}, not {data_type}")


def no_tensor(name: str) -> str:
    return f"save({name!r}): there is no tensor in it, so nothing is saved"


def no_gradient(name: str) -> str:
    return f"save_grad({name!r}): the tensor needs no gradient here, so none will be saved"
