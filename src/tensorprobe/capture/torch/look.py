"""Compiled code (`_look.c`) in the place of the hot part of value.py, identity.py and reader.py, where it was built;
and the leaf of a tensor without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture import native
from tensorprobe.capture.torch.hiding import count_dispatch_modes, is_function_off, transforms
from tensorprobe.capture.torch.identity import NODE_KEY
from tensorprobe.capture.torch.layout import NO_LAYOUT, QUANTIZED, Layout, add_layout, known_layouts
from tensorprobe.capture.torch.node import find_node
from tensorprobe.capture.torch.value import (
    PLAIN_TYPES,
    KnownStorage,
    ValueTable,
    graph_task,
    is_identifiable,
    is_wrapped_by_functorch,
)
from tensorprobe.compiled import load_compiled
from tensorprobe.model.record import TensorLeaf, Value

if TYPE_CHECKING:
    from tensorprobe.capture.torch.reader import TorchReader

text_of: Callable[[torch.dtype], str] = cache(str)


def make_leaf_plainly(
    reader: TorchReader,
    tensor: torch.Tensor,
    value: Value,
    known: KnownStorage,
    layout: Layout,
    produced_by: str | None,
) -> TensorLeaf:
    """Of a plain tensor: most of what it could be need not be asked."""
    dtype, source = layout[4], known.sources.get(layout, known.writer)
    requires_grad, node = tensor.requires_grad, find_node(tensor)
    told = source if source != produced_by else None
    leaf = TensorLeaf("torch.Tensor", text_of(dtype), layout[2], requires_grad, value, told)
    if source is not None and source.endswith(".forward"):
        if not known.is_exposed:
            leaf.is_leaf = False
        if node is None and requires_grad:
            leaf.starts_graph = True
    count = len(known.by_place)
    leaf.tensor, leaf.storage = reader.numbers.number(tensor, known, layout, node, requires_grad), known.number
    if count and produced_by is None and len(known.by_place) > count and tensor._is_view():
        leaf.view_of = reader.numbers.find_base(tensor, known)
    parameter = reader.parameter_names.get(id(tensor))
    if parameter is None and type(tensor) is torch.nn.Parameter:
        parameter = reader.find_parameter(tensor)
    if parameter is not None:
        leaf.parameter = parameter
    if layout[1] or not layout.is_contiguous:
        leaf.layout = layout[1], layout[3]
    if layout[5] or layout[6]:
        leaf.is_conjugated, leaf.is_negated = layout[5], layout[6]
    if dtype in QUANTIZED:
        leaf.note = QUANTIZED[dtype]
    return leaf


compiled = load_compiled("tensorprobe.capture.torch._look", interface=2)
find_value: Any = ValueTable.find
make_leaf: Any = make_leaf_plainly
if compiled is not None:
    find_value, make_leaf = compiled.find, compiled.make_leaf
    compiled.prepare(
        *PLAIN_TYPES,
        TensorLeaf,
        is_wrapped_by_functorch,
        is_identifiable,
        frozenset({torch.complex32, torch.complex64, torch.complex128}),
        graph_task,
        QUANTIZED,
        NODE_KEY,
        NO_LAYOUT,
        known_layouts,
        add_layout,
        KnownStorage,
        torch.is_grad_enabled,
        torch.UntypedStorage._free_weak_ref,
        torch.UntypedStorage._expired,
        is_function_off,
        count_dispatch_modes,
        transforms,
        Value,
        native.summarize,
    )
