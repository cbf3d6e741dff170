"""What a backward pass was asked for: from which tensors, with which gradients, with respect to what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def describe_request(args: tuple[Any, ...], kwargs: Mapping[str, Any], reader: Any) -> dict[str, Any]:
    """The arguments of torch's `_engine_run_backward`: roots, their gradients, retain, create, inputs."""
    roots, gradients, _, creates_graph, inputs = (*args, *(None,) * 5)[:5]
    return {
        "roots": [identify(root, reader) for root in roots],
        "gradients": [identify(gradient, reader) for gradient in gradients or ()],
        "inputs": [identify(tensor, reader) for tensor in inputs or ()],
        "accumulates": bool(kwargs.get("accumulate_grad")),
        "creates_graph": bool(creates_graph),
    }


def identify(tensor: Any, reader: Any) -> dict[str, Any] | None:
    """Which tensor it is, and who made it."""
    if not isinstance(tensor, torch.Tensor):
        return None  # a gradient that is not given, or an edge of the graph
    leaf = reader.identify(tensor)
    return {key: value for key, value in leaf.items() if value is not None}
