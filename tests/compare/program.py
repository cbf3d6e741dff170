"""A small transformer, followed without a framework, in all the variants that two real programs have of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.compare.run_builder import RunBuilder, Tensor

TOKENS, WIDTH, HEADS = 6, 8, 2
STREAM = (TOKENS, WIDTH)
PER_HEAD = (HEADS, TOKENS, WIDTH // HEADS)


@dataclass(frozen=True)
class Transformer:
    """What differs between two programs; the defaults are the reference."""

    layers: Sequence[int] = (0, 1, 2, 3)
    """Which layers of the checkpoint there are; they are counted anew."""
    prefix: str = ""
    """Of all module paths: `module.`"""
    names: dict[str, str] = field(default_factory=dict)
    """Parts of module paths that are called otherwise."""
    wrapper: str | None = None
    """The class of a module around all."""
    is_fused: bool = True
    extra_after: frozenset[int] = frozenset()
    """After which API calls, by number, another one is inserted."""
    extra_op: str = "clone"
    spelling: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Operations, and prefix and name under which they are called."""

    def record(self, builder: RunBuilder) -> RunBuilder:
        _Recording(self, builder).run()
        return builder


class _Recording:
    def __init__(self, program: Transformer, builder: RunBuilder) -> None:
        self.program = program
        self.builder = builder
        self.count = 0

    def run(self) -> None:
        tokens = self.builder.data("tokens", (TOKENS,))
        if self.program.wrapper is None:
            logits = self.model(tokens)
        else:
            with self.builder.module("", self.program.wrapper, mark="wrapper"):
                logits = self.model(tokens)
        target = self.builder.data("target", (TOKENS,))
        self.call("Functional", "cross_entropy", logits, target, shape=())

    def model(self, tokens: Tensor) -> Tensor:
        with self.builder.module(self.path(""), "GPT", mark="GPT"):
            words = self.builder.weight("words", (50, WIDTH))
            with self.builder.module(self.path("words"), "Embedding", {"weight": words}, mark="words"):
                x = self.call("Functional", "embedding", tokens, words, shape=STREAM)
            for place, layer in enumerate(self.program.layers):
                x = self.layer(x, place, layer)
            return self.linear(x, "head", "head", 50)

    def layer(self, x: Tensor, place: int, layer: int) -> Tensor:
        path, mark = f"layers.{place}", f"layer{layer}"
        with self.builder.module(self.path(path), "Block", mark=mark):
            y = self.norm(x, f"{path}.norm", f"{mark}.norm")
            with self.builder.module(self.path(f"{path}.attention"), "Attention", mark=f"{mark}.attention"):
                y = self.attention(y, f"{path}.attention", f"{mark}.attention")
            x = self.call("Tensor", "add", x, y, shape=STREAM, mark=f"{mark}.residual")
            y = self.linear(x, f"{path}.fc", f"{mark}.fc", WIDTH)
            y = self.call("Functional", "gelu", y, shape=STREAM, mark=f"{mark}.gelu")
            return self.call("Tensor", "add", x, y, shape=STREAM, mark=f"{mark}.residual")

    def attention(self, x: Tensor, path: str, mark: str) -> Tensor:
        parts = []
        for name in ("q", "k", "v"):
            y = self.linear(x, f"{path}.{name}", f"{mark}.{name}", WIDTH)
            y = self.call("Tensor", "view", y, shape=(TOKENS, HEADS, WIDTH // HEADS), mark=f"{mark}.{name}.view")
            parts.append(self.call("Tensor", "transpose", y, shape=PER_HEAD, mark=f"{mark}.{name}.transpose"))
        q, k, v = parts
        if self.program.is_fused:
            y = self.call("Functional", "scaled_dot_product_attention", q, k, v, shape=PER_HEAD, mark=f"{mark}.fused")
        else:
            square = (HEADS, TOKENS, TOKENS)
            turned = self.call("Tensor", "transpose", k, shape=(HEADS, WIDTH // HEADS, TOKENS), mark=f"{mark}.part")
            y = self.call("Torch", "matmul", q, turned, shape=square, mark=f"{mark}.part")
            y = self.call("Tensor", "div", y, shape=square, mark=f"{mark}.part")
            y = self.call("Functional", "softmax", y, shape=square, mark=f"{mark}.part")
            y = self.call("Torch", "matmul", y, v, shape=PER_HEAD, mark=f"{mark}.part")
        y = self.call("Tensor", "transpose", y, shape=(TOKENS, HEADS, WIDTH // HEADS), mark=f"{mark}.back")
        y = self.call("Tensor", "reshape", y, shape=STREAM, mark=f"{mark}.back")
        return self.linear(y, f"{path}.out", f"{mark}.out", WIDTH)

    def norm(self, x: Tensor, path: str, mark: str) -> Tensor:
        weight = self.builder.weight(f"{mark}.weight", (WIDTH,))
        with self.builder.module(self.path(path), "LayerNorm", {"weight": weight}, mark=mark):
            return self.call("Functional", "layer_norm", x, weight, shape=STREAM, mark=f"{mark}.call")

    def linear(self, x: Tensor, path: str, mark: str, width: int) -> Tensor:
        weight = self.builder.weight(f"{mark}.weight", (width, WIDTH))
        bias = self.builder.weight(f"{mark}.bias", (width,))
        with self.builder.module(self.path(path), "Linear", {"weight": weight, "bias": bias}, mark=mark):
            return self.call("Functional", "linear", x, weight, bias, shape=(TOKENS, width), mark=f"{mark}.call")

    def call(self, prefix: str, op: str, *inputs: Tensor, shape: tuple[int, ...], mark: str | None = None) -> Tensor:
        prefix, spelt = self.program.spelling.get(op, (prefix, op))
        result = self.builder.call(prefix, spelt, *inputs, shape=shape, mark=mark or op)
        if self.count in self.program.extra_after:
            result = self.builder.call("Tensor", self.program.extra_op, result, shape=shape, mark=f"extra{self.count}")
        self.count += 1
        return result

    def path(self, path: str) -> str:
        parts = [self.program.names.get(part, part) for part in path.split(".")] if path else []
        return ".".join([*filter(None, self.program.prefix.split(".")), *parts])
