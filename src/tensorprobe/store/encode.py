"""Records as lines of JSON, in the dialect of this format: NaN and Infinity stand bare, as Python's json writes them.

Tensor leaves are by far the most frequent thing in a dump, so their text is put together by hand; everything else goes
through json. Compiled code (`_encode.c`) writes the same text where it was built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tensorprobe.compiled import load_compiled
from tensorprobe.model.record import LateField, Number, Sharding, Stats, TensorLeaf

_encode_string = json.encoder.encode_basestring_ascii
_compiled: Any = load_compiled("tensorprobe.store._encode", interface=1)


def encode_entry(name: str, value: Any) -> str:
    """`"name": value` on one line."""
    return f"{_encode_string(name)}: {encode_tree(value)}"


def encode_tree(tree: Any) -> str:
    """Nested lists and dicts with tensor leaves in them."""
    text: str = _encode_tree(tree) if _compiled is None else _compiled.encode_tree(tree)
    return text


def _encode_tree(tree: Any) -> str:
    kind = type(tree)
    if kind is TensorLeaf:
        return _encode_tensor(tree)
    if kind is str:
        return _encode_string(tree)
    if kind is int or kind is float or kind is bool or tree is None:
        return encode_number(tree)
    if kind is list:
        return f"[{', '.join([_encode_tree(item) for item in tree])}]"
    if kind is dict:
        return f"{{{', '.join([f'{_encode_string(key)}: {_encode_tree(item)}' for key, item in tree.items()])}}}"
    if isinstance(tree, LateField):
        return _encode_tree(tree.resolve())
    return json.dumps(tree)


def _encode_tensor(leaf: TensorLeaf) -> str:
    parts = [_encode_kind(leaf.type, leaf.dtype, tuple(leaf.shape))]
    value = leaf.value
    if value.stats is not None:
        parts.append(_encode_stats(value.stats))
    if leaf.requires_grad is not None:
        parts.append(f'"requires_grad": {"true" if leaf.requires_grad else "false"}')
    if value.digest is not None:
        parts.append(f'"{value.digest_kind}": "{value.digest}"')
    if leaf.data_name is not None:
        parts.append(f'"data_name": {_encode_string(leaf.data_name)}')
    if leaf.source is not None:
        parts.append(f'"source": {_encode_string(leaf.source)}')
    if leaf.parameter is not None:
        parts.append(f'"parameter": {_encode_string(leaf.parameter)}')
    if leaf.tensor is not None:
        parts.append(f'"tensor": {leaf.tensor}')
    if leaf.storage is not None:
        parts.append(f'"storage": {leaf.storage}')
        if leaf.layout is not None:
            offset, strides = leaf.layout
            parts.append(f'"offset": {offset}, "stride": [{", ".join(map(str, strides))}]')
        if leaf.view_of is not None:
            parts.append(f'"view_of": {leaf.view_of}')
        if leaf.starts_graph:
            parts.append('"starts_graph": true')
        if leaf.is_conjugated:
            parts.append('"conjugated": true')
        if leaf.is_negated:
            parts.append('"negated": true')
    if leaf.note is not None:
        parts.append(f'"note": {_encode_string(leaf.note)}')
    if leaf.sharding is not None:
        parts.append(_encode_sharding(leaf.sharding))
    return ", ".join(parts) + "}"


@lru_cache(maxsize=4096)
def _encode_kind(kind: str, dtype: str, shape: tuple[int, ...]) -> str:
    """The beginning of a tensor leaf. A step has many tensors of few shapes."""
    sizes = ", ".join(map(str, shape))
    return f'{{"type": {_encode_string(kind)}, "dtype": {_encode_string(dtype)}, "shape": [{sizes}]'


def encode_number(number: Number) -> str:
    """A number as Python's json writes it."""
    if number is None:
        return "null"
    if number is True:
        return "true"
    if number is False:
        return "false"
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return repr(number)


def _encode_sharding(sharding: Sharding) -> str:
    mesh = {"shape": sharding.mesh_shape, "names": sharding.mesh_names, "ranks": sharding.mesh_ranks}
    return (
        f'"placements": {json.dumps(sharding.placements)}, "mesh": {json.dumps(mesh)}, '
        f'"local_shape": {json.dumps(sharding.local_shape)}'
    )


show_sketched: Callable[[float], str] = "{:.9g}".format
"""One number of a sketch, with the digits that it is written with."""


def _encode_stats(stats: Stats) -> str:
    if stats.text is not None:
        return stats.text
    text = _write_stats(stats)
    if stats.max is not None:  # else they may yet come
        stats.text = text
    return text


def _write_stats(stats: Stats) -> str:
    norm, mean = stats.norm, stats.mean
    is_plain = type(norm) is type(mean) is type(stats.max) is float and norm < math.inf and -math.inf < mean < math.inf
    if is_plain:  # the extremes are finite where the norm is
        text = f'"Max": {stats.max!r}, "Min": {stats.min!r}, "Mean": {stats.mean!r}, "Norm": {stats.norm!r}'
    else:
        text = (
            f'"Max": {encode_number(stats.max)}, "Min": {encode_number(stats.min)}, '
            f'"Mean": {encode_number(stats.mean)}, "Norm": {encode_number(stats.norm)}'
        )
    if stats.sketch is not None:
        text += f', "Sketch": [{", ".join(map(show_sketched, stats.sketch))}]'
    if stats.nan_count:
        text += f', "nan_count": {stats.nan_count}'
    if stats.inf_count:
        text += f', "inf_count": {stats.inf_count}'
    if stats.reason is not None:
        text += f', "reason": {_encode_string(stats.reason)}'
    return text


if _compiled is not None:
    _compiled.prepare(TensorLeaf, LateField, json.dumps, _encode_string, encode_number, _encode_sharding)
