"""The weights of one of two networks, in PyTorch's words, and which of them have a partner."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprobe.migrator.weight_layer import Layer, sign
from tensorprobe.migrator.weight_name import BATCH_COUNT, common_weight_name
from tensorprobe.migrator.weight_word import Meaning, Naming, Path
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import plain_shape

KNOWN_LEAVES = frozenset({"weight", "bias", "running_mean", "running_var"})


class WeightSide:
    """Order plays no part in it: whatever is asked of it is the same for any order of the weights."""

    def __init__(self, weights: Sequence[Weight], framework: str) -> None:
        self.weights = list(weights)
        self.taken: set[str] = set()
        self._names = {weight.name: common_weight_name(weight, framework) for weight in self.weights}
        self._layers: dict[Path, dict[str, Weight]] = {}
        for weight in sorted(self.weights, key=lambda weight: weight.name):
            self._layers.setdefault(self.path(weight), {})[self.leaf(weight)] = weight
        shapes = {path: tuple(sorted(map(plain_shape, layer.values()))) for path, layer in self._layers.items()}
        self.naming = Naming(shapes)
        self._meanings = {path: (self.naming.meaning(path), self.naming.plain_meaning(path)) for path in shapes}

    def name(self, weight: Weight) -> str:
        """In PyTorch's words."""
        return self._names[weight.name]

    def path(self, weight: Weight) -> Path:
        return tuple(self.name(weight).split(".")[:-1])

    def leaf(self, weight: Weight) -> str:
        return self.name(weight).rpartition(".")[2]

    def layer(self, path: Path) -> dict[str, Weight]:
        """All weights of a layer, those with a partner too."""
        return self._layers.get(path, {})

    def left(self) -> list[Weight]:
        return [weight for weight in self.weights if weight.name not in self.taken]

    def layers(self, is_distinct: bool = False) -> list[Layer]:
        """What is left, layer by layer. `is_distinct`: without those that share all their memory with another."""
        known = {weight.memory for weight in self.weights if weight.name in self.taken} - {None}
        found = []
        for path, layer in self._layers.items():
            left = {leaf: one for leaf, one in layer.items() if one.name not in self.taken and leaf != BATCH_COUNT}
            if is_distinct and all(weight.memory in known for weight in left.values()):
                continue
            if is_distinct:
                known |= {weight.memory for weight in left.values()} - {None}
            found.append(Layer(path, self._meanings[path], left, sign(left)))
        return [layer for layer in found if layer.weights]

    def singles(self) -> list[Layer]:
        """What is left, weight by weight."""
        found = []
        for layer in self.layers(is_distinct=True):
            for leaf, weight in layer.weights.items():
                is_known = leaf in KNOWN_LEAVES
                own = frozenset() if is_known else frozenset({leaf})
                meanings = tuple(Meaning(one.words | own, one.numbers) for one in layer.meanings)
                signature = ((leaf if is_known else "", plain_shape(weight)),)
                found.append(Layer((*layer.path, leaf), meanings, {leaf: weight}, signature))
        return found
