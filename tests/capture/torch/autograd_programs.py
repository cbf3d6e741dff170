"""Programs that use autograd and modules in every way. Each function builds a model and a program from a seed; the
program returns what must not change when it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.utils import parametrizations, parametrize

from tests.capture.torch.training import Observed

Built = tuple[nn.Module, Callable[[], Observed]]


def gradients_of(model: nn.Module) -> Observed:
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def a_shared_module() -> Built:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    x = torch.randn(2, 4)

    def run() -> Observed:
        (model(x).sum() + model(x * 2).square().sum()).backward()
        return gradients_of(model)

    return model, run


def tied_weights() -> Built:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Linear(4, 7, bias=False))
    model[2].weight = model[0].weight

    def run() -> Observed:
        model(torch.tensor([[1, 2, 1]])).square().sum().backward()
        return gradients_of(model)

    return model, run


def double_backward() -> Built:
    model, x = small(), torch.randn(3, 4, requires_grad=True)

    def run() -> Observed:
        y = model(x).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        (slope.square().sum() + y).backward()
        return {**gradients_of(model), "x": x.grad}

    return model, run


def backward_of_a_backward() -> Built:
    model, x = small(), torch.randn(3, 4, requires_grad=True)

    def run() -> Observed:
        model(x).sum().backward(create_graph=True)
        slope, x.grad = x.grad, None
        assert slope is not None
        model.zero_grad()
        slope.square().sum().backward()
        return {**gradients_of(model), "x": x.grad}

    return model, run


def torch_autograd_grad() -> Built:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def run() -> Observed:
        unused = torch.zeros(1, requires_grad=True)
        weight, bias, nothing = torch.autograd.grad(
            model(x).sum(), [model.weight, model.bias, unused], allow_unused=True
        )
        batched = torch.autograd.grad(model(x), model.weight, torch.eye(8).view(8, 2, 4), is_grads_batched=True)
        jacobian = torch.autograd.functional.jacobian(model, x)
        return {"weight": weight, "bias": bias, "nothing": nothing, "batched": batched[0], "jacobian": jacobian}

    return model, run


def function_transforms() -> Built:
    model, x = small(), torch.randn(3, 4)

    def run() -> Observed:
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def call(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.func.functional_call(model, parameters, (x,))
            return result

        def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.func.functional_call(model, parameters, (x,)).square().mean()
            return result

        by_all = torch.func.grad(loss)(parameters, x)
        by_each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        value, tangent = torch.func.jvp(call, (x,), (torch.ones_like(x),))
        _, pull = torch.func.vjp(call, x)
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        return {
            **{f"by all {name}": tensor for name, tensor in by_all.items()},
            **{f"by each {name}": tensor for name, tensor in by_each.items()},
            "value": value,
            "tangent": tangent,
            "dual": dual.detach(),
            "pulled": pull(torch.ones(3, 1))[0],
            "jacobian": torch.func.jacrev(lambda x: call(x).sum())(x),
            "hessian": torch.func.hessian(lambda x: call(x).sum())(x[0]),
        }

    return model, run


class Scaling(torch.autograd.Function):
    """Changes its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.factor = factor
        return x.mul_(factor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


class Product(torch.autograd.Function):
    """Has a context of its own, and returns more than tensors."""

    @staticmethod
    def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Size, str, None]:
        return x @ w, x.shape, "text", None

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return gradient @ w.T, x.T @ gradient


class Exponential(torch.autograd.Function):
    """Is differentiable once, and has a result without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        ctx.save_for_backward(y)
        place = x.argmax()
        ctx.mark_non_differentiable(place)
        return y, place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


def custom_functions() -> Built:
    model, x, w = nn.Linear(4, 4), torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)

    def run() -> Observed:
        scaled = Scaling.apply(model(x) * 1, 3.0)
        product, shape, text, nothing = Product.apply(scaled, w)
        result, place = Exponential.apply(product * 0.1)
        result.sum().backward()
        return {**gradients_of(model), "w": w.grad, "place": place, "rest": (shape, text, nothing)}

    return model, run


def sparse_embeddings() -> Built:
    model = nn.ModuleDict({"one": nn.Embedding(10, 4, sparse=True), "bag": nn.EmbeddingBag(10, 4, sparse=True)})

    def run() -> Observed:
        words = torch.tensor([1, 1, 3])
        loss = model["one"](words).sum() * 2 + model["one"](words[:1]).square().sum()
        (loss + model["bag"](words, torch.tensor([0, 2])).square().sum()).backward()
        return {name: None if g is None else g.to_dense() for name, g in gradients_of(model).items()}

    return model, run


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


def parametrized_weights() -> Built:
    layers = [nn.Linear(4, 4) for _ in range(4)]
    parametrizations.weight_norm(layers[0])
    parametrizations.orthogonal(layers[1])
    parametrizations.spectral_norm(layers[2])
    parametrize.register_parametrization(layers[3], "weight", Symmetric())
    model, x = nn.Sequential(*layers), torch.randn(2, 4)

    def run() -> Observed:
        with parametrize.cached():
            (model(x) + model(x * 2)).sum().backward()
        model.zero_grad()
        model(x).square().sum().backward()
        return gradients_of(model)

    return model, run


def saved_tensor_hooks() -> Built:
    model, x = small(), torch.randn(3, 4)

    def run() -> Observed:
        with save_on_cpu():
            first = model(x)
        with saved_tensors_hooks(lambda tensor: (tensor.double(), tensor.dtype), lambda pair: pair[0].to(pair[1])):
            second = model(x)
        (first + second).sum().backward()
        return gradients_of(model)

    return model, run


def backward_twice_and_accumulation() -> Built:
    model, x = small(), torch.randn(3, 4)

    def run() -> Observed:
        y = model(x)
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        for row in x:
            (model(row[None]).square().sum() / 3).backward()
        return gradients_of(model)

    return model, run


def evaluation() -> Built:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), torch.randn(3, 4)

    def run() -> Observed:
        observed: Observed = {}
        with torch.no_grad():
            observed["no_grad"] = model(x)
        with torch.inference_mode():
            observed["inference_mode"] = model(x).clone()
        model.eval()
        observed["eval"] = model(x).detach()
        model.train()
        with torch.no_grad(), torch.enable_grad():
            model(x).sum().backward()
        return {**observed, **gradients_of(model), "mean": model[1].running_mean.clone()}

    return model, run


@dataclass
class Result:
    first: torch.Tensor
    rest: Any = None
    number: int = 3


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *, parts: Any, result: Result, **more: torch.Tensor) -> Result:
        y = self.layer(x) + parts["key"][0] + more["extra"] + result.first
        return Result(y, {"twice": (y * 2, None), "text": "text"})


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Containers()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        result = self.inner(x, parts={"key": (x,)}, result=Result(x), extra=torch.ones(4))
        return {"loss": result.first.sum() + result.rest["twice"][0][:, 1:3].T.square().sum()}


def containers() -> Built:
    model, x = Around(), torch.randn(3, 4, requires_grad=True)

    def run() -> Observed:
        model(x)["loss"].backward()
        return {**gradients_of(model), "x": x.grad}

    return model, run


def views_and_slices() -> Built:
    model, x = nn.Linear(4, 6), torch.randn(3, 4)

    def run() -> Observed:
        y = model(x)
        first, second, third = y.chunk(3, 1)
        row = y.unbind(0)[0]
        loss = first.sum() + third.square().sum() + row[1] + y[:, ::2].t().reshape(-1).narrow(0, 1, 3).sum()
        loss = loss + y.select(1, 2).sum() + torch.stack([second, second])[0].sum() + y.as_strided((2, 2), (1, 2)).sum()
        loss.backward()
        return gradients_of(model)

    return model, run


def hooks_of_the_user() -> Built:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(2, 4)

    def run() -> Observed:
        seen: Observed = {}
        handles = [
            model[0].register_full_backward_hook(lambda _, __, given: seen.update(given=given[0].clone())),
            model[2].register_full_backward_pre_hook(lambda _, given: (given[0] * 2,)),
            model[1].register_forward_hook(lambda _, __, output: output * 3),
            model[0].register_forward_pre_hook(lambda _, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True),
        ]
        with torch.autograd.detect_anomaly(check_nan=True):
            model(x).sum().backward(inputs=list(model.parameters()))
        for handle in handles:
            handle.remove()
        return {**gradients_of(model), **seen}

    return model, run


def exchanged_parameters() -> Built:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def run() -> Observed:
        model(x).sum().backward()
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(4, 4)))
        model(x).square().sum().backward()
        return gradients_of(model)

    return model, run


AUTOGRAD_PROGRAMS: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (
        a_shared_module,
        tied_weights,
        double_backward,
        backward_of_a_backward,
        torch_autograd_grad,
        function_transforms,
        custom_functions,
        sparse_embeddings,
        parametrized_weights,
        saved_tensor_hooks,
        backward_twice_and_accumulation,
        evaluation,
        containers,
        views_and_slices,
        hooks_of_the_user,
        exchanged_parameters,
    )
}
