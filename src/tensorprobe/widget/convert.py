"""Saved files of other kinds as .npy files: what MindSpore printed into a file, and torch's .pt files. Needs neither
framework; nothing is unpickled, and what could be read is written even if the rest cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.capture.save_target import PRINT_MARK
from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.name import slot_file_name
from tensorprobe.store import layout, npy_file, print_file, printed_text, torch_file
from tensorprobe.store.disk import open_whole
from tensorprobe.store.tensor_file import NotDenseError, map_file, open_tensor
from tensorprobe.store.tensor_layout import Unreadable, is_numpy_dtype

Array = np.ndarray[Any, Any]
Reach = Callable[[int, int], None]
"""Called with how much is done and how much there is."""

_FIRST_PRINT_BYTE = b"\x0a"  # the tag of the one field that such a file has


@dataclass
class Conversion:
    """What came of it: the files that were written, and what could not be read."""

    written: list[Path] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def save_convert(file: str | os.PathLike[str], output_path: str | os.PathLike[str]) -> None:
    """Turn what `save(…, output_mode="print")` has put into a print file of MindSpore into .npy files.

    They are called `{id}_{name}.npy`, with numbers in the order of the file. What was printed by others is left out.
    """
    source, folder = _check_path("save_convert", file), _check_path("save_convert", output_path)
    done = Conversion()
    _convert_print_file(source, folder, done, lambda _, __: None)
    if done.errors:
        raise DumpError("\n".join(done.errors))


def convert(path: Path, folder: Path, reach: Reach = lambda _, __: None) -> Conversion:
    """Turn a print file, a .pt file, or every .pt file in a folder, into .npy files in `folder`."""
    done = Conversion()
    if path.is_dir():
        files = list(_torch_files(path))
        if not files:
            raise DumpError(f"{path} holds no .pt file")
        for count, source in enumerate(files, 1):
            if source.is_symlink():
                done.errors.append(f"{source} is a link, which is not followed")
            else:
                _convert_torch_file(source, folder / source.relative_to(path).parent, done)
            reach(count, len(files))
    elif _is_torch_file(path):
        _convert_torch_file(path, folder, done)
    else:
        _convert_print_file(path, folder, done, reach)
    return done


def _torch_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):  # which follows no link
        folders.sort()
        yield from (Path(place) / name for name in sorted(names) if name.endswith(".pt"))


def _is_torch_file(path: Path) -> bool:
    return path.suffix == ".pt" or bytes(_map(path)[: len(torch_file.MAGIC)]) == torch_file.MAGIC


def _convert_torch_file(path: Path, folder: Path, done: Conversion) -> None:
    try:
        array = open_tensor(path)
    except NotDenseError:
        done.errors.append(f"{path} holds no plain array (it is sparse, quantized or packed), which is not converted")
        return
    except DumpError as error:
        done.errors.append(f"{path.parent}{os.sep}{error}")
        return
    if not is_numpy_dtype(array.dtype.name):  # of ml_dtypes; np.load would give nameless bytes
        array = array.astype(np.float32)
    _write(folder / f"{path.stem}.npy", array, done)


def _convert_print_file(path: Path, folder: Path, done: Conversion, reach: Reach) -> None:
    content = _map(path)
    if content[: len(npy_file.MAGIC)] == npy_file.MAGIC:
        raise DumpError(f"{path} is a .npy file already")
    if content and content[:1] != _FIRST_PRINT_BYTE:
        raise DumpError(f"{path} is neither a .pt file nor a file that MindSpore's print_file_path has made")
    count = 0
    try:
        for name, value in _marked_values(content, reach):
            stem = name.removesuffix(".npy")
            _convert_value(content, value, folder / slot_file_name(f"{count}_{stem}", "npy"), f"{path}: {stem}", done)
            count += 1
    except Unreadable as error:
        done.errors.append(f"{path} {error}; what lies before that is converted")
    if not done.written and not done.errors:
        raise DumpError(f"{path} holds nothing that save(…, output_mode='print') has printed")


def _marked_values(
    content: print_file.Content, reach: Reach
) -> Iterator[tuple[str, str | print_file.PrintedTensor | None]]:
    """What was printed with a mark: its name, and what follows it; None if nothing does."""
    name: str | None = None
    for value in print_file.read_values(content):
        if isinstance(value, str) and value.startswith(PRINT_MARK):
            if name is not None:
                yield name, None
            name, rest = _split_mark(value)
            if printed_text.is_tensor(rest):
                yield name, rest
                name = None
        elif name is not None:
            yield name, value
            name = None
        if isinstance(value, print_file.PrintedTensor):
            reach(value.end, len(content))
    if name is not None:
        yield name, None


def _split_mark(text: str) -> tuple[str, str]:
    """The name in a marked text, and what follows it: on its line, or on the next."""
    line, _, below = text.removeprefix(PRINT_MARK).partition("\n")
    before, is_beside, beside = line.partition(printed_text.TENSOR_SIGN)
    if is_beside and before[-1:].isspace():
        return before.strip(), f"{is_beside}{beside}\n{below}"
    return line.strip(), below.lstrip()


def _convert_value(
    content: print_file.Content, value: str | print_file.PrintedTensor | None, path: Path, what: str, done: Conversion
) -> None:
    try:
        if value is None:
            raise Unreadable("has a name and no tensor")
        array = _array_of(content, value)
    except Unreadable as error:
        done.errors.append(f"{what} {error}")
        return
    _write(path, array, done)


def _array_of(content: print_file.Content, value: str | print_file.PrintedTensor) -> Array:
    if isinstance(value, str):
        return printed_text.parse_tensor(value)
    return print_file.make_array(content, value)


def _write(path: Path, array: Array, done: Conversion) -> None:
    try:
        layout.make_folder(path.parent)
        with open_whole(path) as file:
            np.save(file, array, allow_pickle=False)
    except OSError as error:
        raise DumpError(f"{path} cannot be written ({error.strerror or error})") from error
    done.written.append(path)


def _map(path: Path) -> print_file.Content:
    try:
        return map_file(path)
    except Unreadable as error:
        raise DumpError(f"{path} {error}") from None
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror or error})") from error


def _check_path(function: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise UsageError(f"{function}(file, output_path): both are paths, not {path!r}")
    return Path(path)
