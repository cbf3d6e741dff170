"""What the backward engine was asked for, so that a replay can ask for the same: from which tensors, with which
gradients, with respect to what; and which tensors hold the gradients of leaves before and after.

Which leaves a pass reaches is read from its graph before it runs. No tensor is held longer than the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.node import AccumulateGrad
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.value import is_identifiable

_MAX_LOSSES = 1024

Request = dict[str, Any]


class BackwardPasses:
    """Notes the requests of one session, in the order in which they are made."""

    def __init__(self, recorder: Recorder, reader: TorchReader) -> None:
        self._recorder = recorder
        self._reader = reader

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_nested: bool) -> Callable[[Any], Any]:
        """The engine is called, maybe inside another pass. What is returned is given the result, and hands it on."""
        recorder = self._recorder
        name = f"backward_pass.{len(recorder.backward_passes)}"
        try:
            with hidden(), torch._C.DisableTorchFunction():
                request, leaves = self._describe(args, kwargs, name)
                request["is_nested"] = is_nested
                if recorder.wants_loss and not is_nested:
                    self._note_losses(args[0] if args else ())
        except Exception as error:
            recorder.note_failure("the roots of a backward pass", error)
            return lambda results: results
        finish = recorder.backward_passes.add(request)

        def end(results: Any) -> Any:
            try:
                with hidden(), torch._C.DisableTorchFunction():
                    if isinstance(results, tuple) and not request["accumulates"]:
                        request["results"] = [self._identify(result) for result in results]
                    request["leaves"] = [*self._describe_leaves(leaves, name)]
                finish(request)
            except Exception as error:
                recorder.note_failure("the results of a backward pass", error)
            return results

        return end

    def _note_losses(self, roots: Any) -> None:
        losses = self._recorder.backward_passes.losses
        for root in roots:
            is_scalar = isinstance(root, torch.Tensor) and root.numel() == 1 and root.is_floating_point()
            if is_scalar and len(losses) < _MAX_LOSSES:
                losses.append(self._reader.read(root, None))

    def _describe(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str
    ) -> tuple[Request, list[LeafGradient]]:
        """The arguments of torch's `_engine_run_backward`: roots, their gradients, retain, create, inputs."""
        roots, gradients, keeps_graph, creates_graph, inputs = (*args, *(None,) * 5)[:5]
        request: Request = {
            "roots": [self._identify(root) for root in roots],
            "inputs": [self._identify(tensor) for tensor in inputs or ()],
            "accumulates": bool(kwargs.get("accumulate_grad")),
            "keeps_graph": bool(keeps_graph),
            "creates_graph": bool(creates_graph),
            "records": self._recorder.coverage.recorded,
        }
        if not self._recorder.keeps_leaf_gradients:
            return request, []
        request["gradients"] = [
            None if is_implied(gradient) else self._identify(gradient, f"{name}.gradient.{number}")
            for number, gradient in enumerate(gradients or ())
        ]
        leaves = [LeafGradient(leaf) for leaf in find_leaves(roots)] if request["accumulates"] else []
        for number, leaf in enumerate(leaves):
            leaf.before = self._identify(leaf.tensor.grad, f"{name}.leaf.{number}.before")
        return request, leaves

    def _describe_leaves(self, leaves: Sequence[LeafGradient], name: str) -> Iterator[dict[str, Any]]:
        for number, leaf in enumerate(leaves):
            if leaf.has_changed:
                one, after = self._identify(leaf.tensor), self._identify(leaf.tensor.grad)
                has_record = self._recorder.records_modules and one is not None and "parameter" in one
                if after is not None and not has_record:
                    after["data_name"] = self._recorder.keep_tensor(
                        leaf.tensor.grad, f"{name}.leaf.{number}.after", is_made=True
                    )
                yield {"number": number, "leaf": one, "before": leaf.before, "after": after}

    def _identify(self, tensor: Any, slot: str | None = None) -> dict[str, Any] | None:
        """Which tensor it is, and who made it; with a file of its own, named after `slot`, where nobody was seen to
        have made it. None for what is no tensor: an edge of the graph, a gradient that is not given."""
        if not isinstance(tensor, torch.Tensor):
            return None
        is_known = self._reader.has_identified(tensor)
        if self._reader.values.peek(tensor) is None and self._recorder.keeps_leaf_gradients:
            self._reader.values.observe(tensor)
        leaf = self._reader.identify(tensor)
        if slot is not None and not is_known:
            leaf["data_name"] = self._recorder.keep_tensor(tensor, slot)
        return {key: value for key, value in leaf.items() if value is not None}


class LeafGradient:
    """A leaf that a pass reaches, and its gradient before it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.before: dict[str, Any] | None = None
        self._version = self._version_now()

    @property
    def has_changed(self) -> bool:
        return self._version != self._version_now()

    def _version_now(self) -> tuple[int, int] | None:
        gradient = self.tensor.grad
        return (gradient._cdata, gradient._version) if gradient is not None else None


def is_implied(gradient: Any) -> bool:
    """Is it the one that torch takes for the gradient of a loss? On a device nobody waits to find out."""
    is_plain = isinstance(gradient, torch.Tensor) and is_identifiable(gradient)
    return is_plain and gradient.is_cpu and gradient.numel() == 1 and bool(gradient == 1)


def find_leaves(roots: Any) -> list[torch.Tensor]:
    """The leaves that gradients of the roots reach, in the order of the graph."""
    return [node.variable for node in find_nodes(roots) if is_leaf_node(node)]


def is_leaf_node(node: Any) -> bool:
    return type(node) is AccumulateGrad


def find_nodes(roots: Any) -> list[Any]:
    """The graph of the roots, each node once."""
    seen: set[Any] = set()
    found: list[Any] = []
    waiting = [node for node in (node_of(root) for root in reversed(tuple(roots))) if node is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        found.append(node)
        waiting.extend(parent for parent, _ in reversed(node.next_functions) if parent is not None)
    return found


def node_of(root: Any) -> Any:
    """Where the graph of a root begins."""
    if not isinstance(root, torch.Tensor):
        return getattr(root, "node", None)
    if root.grad_fn is not None or not root.requires_grad:
        return root.grad_fn
    return torch.autograd.graph.get_gradient_edge(root).node
