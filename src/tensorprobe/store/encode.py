"""Records as lines of JSON, in the dialect of this format: NaN and Infinity stand bare, as Python's json writes them.

Tensor leaves are by far the most frequent thing in a dump, so their text is put together by hand; everything else goes
through json.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tensorprobe.model.record import LateField, Number, Sharding, Stats, TensorLeaf

_encode_string = json.encoder.encode_basestring_ascii


def encode_entry(name: str, value: Any) -> str:
    """`"name": value` on one line."""
    return f"{_encode_string(name)}: {encode_tree(value)}"


def encode_tree(tree: Any) -> str:
    """Nested lists and dicts with tensor leaves in them."""
    kind = type(tree)
    if kind is TensorLeaf:
        return encode_tensor(tree)
    if kind is list:
        return f"[{', '.join([encode_tree(item) for item in tree])}]"
    if kind is dict:
        return f"{{{', '.join([f'{_encode_string(key)}: {encode_tree(item)}' for key, item in tree.items()])}}}"
    if isinstance(tree, LateField):
        return encode_tree(tree.resolve())
    return json.dumps(tree)


def encode_tensor(leaf: TensorLeaf) -> str:
    """One tensor leaf."""
    shape = ", ".join(map(str, leaf.shape))
    parts = [f'{{"type": {_encode_string(leaf.type)}, "dtype": {_encode_string(leaf.dtype)}, "shape": [{shape}]']
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


def show_sketched(number: float) -> str:
    """One number of a sketch, with the digits that it is written with."""
    return f"{number:.9g}"


def _encode_stats(stats: Stats) -> str:
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
