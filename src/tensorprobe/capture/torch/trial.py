"""One run of a function for `tensorprobe.check`: what it needs of PyTorch. Nothing of the run is left on the caller's
models: their weights, buffers, gradients and modes are afterwards what they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.patch import nothing
from tensorprobe.capture.torch.backward_pass import find_leaves, find_nodes, is_leaf_node
from tensorprobe.capture.torch.engine_watch import watch_engine
from tensorprobe.capture.torch.hiding import hidden
from tensorprobe.capture.torch.seed import seed_all
from tensorprobe.model.tree import map_tree

__all__ = ["Kept", "copy_model", "copy_tensor", "is_model", "is_tensor", "run", "seed_all"]


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def copy_tensor(tensor: torch.Tensor, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """A new leaf with the same content; `dtype` is for floating-point numbers."""
    content = tensor.detach().clone()
    content = content.to(device=device, dtype=dtype if content.is_floating_point() else None)
    return content.requires_grad_(tensor.requires_grad)


def copy_model(model: torch.nn.Module, dtype: Any = None, device: Any = None) -> torch.nn.Module:
    """The same model in another dtype or on another device; the given one stays as it is."""
    return copy.deepcopy(model).to(device=device, dtype=dtype)


class Kept:
    """Holds what a run may change of models, and brings it back at the end. Inside, no parameter has a gradient."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        self._modules = list(dict.fromkeys(module for model in models for module in model.modules()))
        self._states: list[_ModuleState] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def __enter__(self) -> Kept:
        self._states = [_ModuleState(module) for module in self._modules]
        for module in self._modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.keep_gradient(parameter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for state in self._states:
            state.restore()
        for leaf, gradient in reversed(self._gradients):
            leaf.grad = gradient

    def keep_gradient(self, leaf: torch.Tensor) -> None:
        """Its gradient comes back at the end; until then it begins without one."""
        self._gradients.append((leaf, leaf.grad))
        leaf.grad = None

    @property
    def has_gradients(self) -> bool:
        """Has a backward pass run by now?"""
        return any(leaf.grad is not None for leaf, _ in self._gradients)


class _ModuleState:
    """One module without its children: mode, parameters, buffers."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._is_training = module.training
        self._tables = [(table, dict(table)) for table in (module._parameters, module._buffers)]
        tensors = [tensor for _, before in self._tables for tensor in before.values() if tensor is not None]
        self._contents = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]

    def restore(self) -> None:
        self._module.training = self._is_training
        for table, before in self._tables:
            table.clear()
            table.update(before)
        for tensor, content in self._contents:
            _restore_content(tensor, content)


def _restore_content(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """What did not change is not touched, so that a graph of the caller's that holds it stays valid."""
    now = tensor.data
    if (now.shape, now.dtype, now.device) != (content.shape, content.dtype, content.device):
        tensor.data = content
    elif not now.is_meta and not torch.equal(now, content):
        now.copy_(content)


def run(call: Callable[[], Any], backward: bool, kept: Kept) -> None:
    """Call it, and differentiate what it returns, unless it has run a backward pass itself.

    A result that is one number is the loss. Otherwise every floating-point result takes part, each element with a fixed
    weight: the plain sum of a softmax or of a layer norm has no gradient.
    """
    with _OwnPasses() as own:
        results = [tensor for tensor in _tensors_in(call()) if tensor.requires_grad]
    losses = [tensor for tensor in results if tensor.ndim == 0]
    roots = losses[:1] or results
    if not backward or not roots or kept.has_gradients or own.have_used(roots):
        return
    with hidden():
        for leaf in find_leaves(roots):
            kept.keep_gradient(leaf)
        gradients = [None if root.ndim == 0 else _weights_like(root) for root in roots]
    torch.autograd.backward(roots, gradients)


class _OwnPasses:
    """The backward passes that a function runs itself. A gradient that it asks for on its way (`torch.autograd.grad`)
    is part of what it computes, unless that has freed the graph of its results."""

    def __init__(self) -> None:
        self._has_accumulated = False
        self._freed: set[Any] = set()
        self._undo: Undo = nothing

    def __enter__(self) -> _OwnPasses:
        self._undo = watch_engine(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo()

    def _note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._has_accumulated |= bool(kwargs.get("accumulate_grad"))
        roots, _, keeps_graph = (*args, None, None)[:3]
        if not keeps_graph:
            self._freed.update(find_nodes(roots))

    def have_used(self, roots: Iterable[torch.Tensor]) -> bool:
        """Is there nothing left to differentiate?"""
        nodes = (node for node in find_nodes(roots) if not is_leaf_node(node))
        return self._has_accumulated or not self._freed.isdisjoint(nodes)


def _tensors_in(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def take(value: Any, path: str) -> None:
        if is_tensor(value):
            found.append(value)

    map_tree(tree, "", take, (torch.Tensor,))
    return found


def _weights_like(tensor: torch.Tensor) -> torch.Tensor:
    """From -17/16 to 15/16, none of them 0: exact in every floating-point dtype of 16 bits or more."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    return ((index * 7 % 17 * 2 - 17) / 16).to(tensor.dtype).reshape(tensor.shape)
