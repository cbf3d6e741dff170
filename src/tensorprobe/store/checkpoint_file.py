"""A checkpoint of MindSpore, `.ckpt`, looked through before MindSpore reads it.

    Checkpoint { repeated Value value = 1 { string tag = 1;  TensorProto tensor = 2 } }

with the tensors of print files. MindSpore believes what a file says of its shapes: hundreds of thousands of dimensions
keep it busy for minutes, and four bytes become a weight of a gigabyte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tensorprobe.errors import DumpError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.store.print_file import BYTES, Content, PrintedTensor, item_bytes_of, iter_fields, read_tensor
from tensorprobe.store.tensor_file import map_file
from tensorprobe.store.tensor_layout import Unreadable, quote

_CHECKSUM_SIGN = b"crc_num"
_CHECKSUM_BYTES = len(_CHECKSUM_SIGN) + 10
"""What `save_checkpoint(crc_check=True)` puts behind everything."""
_TEXT = "str"
_TAG, _TENSOR, _TABLE = 1, 2, 3
_MOST_ELEMENTS_IN_A_BYTE = 2  # Int4


def check_checkpoint(path: Path) -> None:
    """DumpError for a file that is none, or that holds less than its shapes say."""
    try:
        for name, pieces in groupby(_iter_pieces(map_file(path)), lambda piece: piece[0]):
            _check_weight(name, [tensor for _, tensor in pieces])
    except Unreadable as error:
        raise DumpError(f"{path} {error}") from None
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror or error})") from error


def _iter_pieces(content: Content) -> Iterator[tuple[str, PrintedTensor]]:
    """Names and tensors; a large one comes in several pieces, one after another."""
    tail = content[-_CHECKSUM_BYTES:]
    file_end = len(content) - (_CHECKSUM_BYTES if tail.startswith(_CHECKSUM_SIGN) else 0)
    for number, wire_type, begin, end in iter_fields(content, 0, file_end):
        name, tensor = "", None
        for inner, inner_type, start, stop in (
            iter_fields(content, begin, end) if (number, wire_type) == (1, BYTES) else ()
        ):
            if (inner, inner_type) == (_TAG, BYTES):
                name = content[start:stop].decode("utf-8", "replace")
            elif (inner, inner_type) == (_TENSOR, BYTES):
                tensor = read_tensor(content, start, stop)
            elif inner == _TABLE:
                raise Unreadable(f"holds a hash table, {quote(name)}, which is not converted")
        if tensor is not None:
            yield name, tensor


def _check_weight(name: str, pieces: list[PrintedTensor]) -> None:
    last, size = pieces[-1], sum(piece.end - piece.begin for piece in pieces)
    if last.tensor_type == _TEXT:
        return
    count = 1 if last.dims == (0,) else math.prod(last.dims)  # how MindSpore writes a single number
    item_bytes = item_bytes_of(short_dtype(last.tensor_type))
    fits = count <= size * _MOST_ELEMENTS_IN_A_BYTE if item_bytes is None else count * item_bytes == size
    if not fits:
        raise Unreadable(
            f"has {size} bytes of {quote(name)}, whose shape {list(last.dims)} needs another number of them"
        )
