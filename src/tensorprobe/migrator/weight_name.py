"""Names of weights from one framework in the words of the other.

The common name is PyTorch's. From MindSpore's to it no class is needed but for a few: a `gamma` is a weight. The other
way round, a weight is a `gamma` in a norm only: the class of its layer says it, or the weights beside it do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorprobe.model.weight import Weight
from tensorprobe.word.spelling import WRAPPER_SEGMENTS
from tensorprobe.word.vocabulary import common_slot, vocabulary

MINDSPORE, PYTORCH = "mindspore", "pytorch"
BATCH_COUNT = "num_batches_tracked"
_OF_EMBEDDINGS = ("emb", "wte", "wpe")


def common_weight_name(weight: Weight, framework: str) -> str:
    """`net.norm.weight`, for MindSpore's `network.net.norm.gamma` too."""
    *path, leaf = weight.name.split(".")
    kinds = weight.kinds if len(weight.kinds) == len(path) + 1 else ()
    if framework == MINDSPORE:
        path = [_common_child(kinds[place] if kinds else "", part) for place, part in enumerate(path)]
        leaf = _common_leaf(kinds[-1] if kinds else "", leaf)
    path = [part for part in path if part]
    while path and path[0] in WRAPPER_SEGMENTS:
        del path[0]
    return ".".join((*path, leaf))


def name_in_mindspore(weight: Weight, beside: Mapping[str, Weight]) -> tuple[str, str]:
    """What a weight of PyTorch is called in a network of `mindspore.nn`, and what that rests on.

    `beside`: all weights of its layer by their own names. Rests on "class"; on "the weights beside it"; or on
    nothing certain, which is said.
    """
    *path, leaf = weight.name.split(".")
    kinds = weight.kinds if len(weight.kinds) == len(path) + 1 else ()
    path = [_own_child(kinds[place] if kinds else "", part) for place, part in enumerate(path)]
    kind, rests_on = (kinds[-1], "class") if kinds else _guess_kind(weight, beside)
    if kind in vocabulary()[MINDSPORE]["children"] and "" in vocabulary()[MINDSPORE]["children"][kind].values():
        path.append(next(own for own, common in vocabulary()[MINDSPORE]["children"][kind].items() if not common))
    return ".".join((*path, _own_leaf(kind, leaf))), rests_on


def named_by(weights: Sequence[Weight]) -> str:
    """Whose words a dictionary of arrays uses: MindSpore's, if it has one that only MindSpore has."""
    words = {*vocabulary()[MINDSPORE]["parameters"], *vocabulary()[MINDSPORE]["buffers"]}
    return MINDSPORE if any(weight.leaf in words for weight in weights) else PYTORCH


def group_by_layer(weights: Sequence[Weight]) -> dict[str, dict[str, Weight]]:
    """Layer by layer, in their order: the weights of each by their own names."""
    layers: dict[str, dict[str, Weight]] = {}
    for weight in weights:
        layers.setdefault(weight.path, {})[weight.leaf] = weight
    return layers


def _guess_kind(weight: Weight, beside: Mapping[str, Weight]) -> tuple[str, str]:
    """The class of a layer by the weights that it has."""
    main = beside.get("weight")
    if main is None or weight.leaf not in ("weight", "bias", "running_mean", "running_var"):
        return "", "its own name"
    if "running_mean" in beside:
        return "BatchNorm2d", "the running_mean beside it"
    bias = beside.get("bias")
    if len(main.shape) == 1 and bias is not None and bias.shape == main.shape:
        return "LayerNorm", "one dimension, with a bias of the same shape"
    if len(main.shape) == 1:
        return "", "uncertain: one dimension and no bias, an RMSNorm or a PReLU"
    if len(main.shape) == 2 and bias is None and any(word in weight.path.lower() for word in _OF_EMBEDDINGS):
        return "Embedding", "uncertain: two dimensions, no bias, and a name that says embedding"
    if len(main.shape) == 3:
        return "Conv1d", "uncertain: three dimensions, a Conv1d or a bilinear layer"
    return "", "its own name"


def _common_child(kind: str, part: str) -> str:
    return str(vocabulary()[MINDSPORE]["children"].get(kind, {}).get(part, part))


def _own_child(kind: str, part: str) -> str:
    children = vocabulary()[MINDSPORE]["children"].get(kind, {})
    return next((own for own, common in children.items() if common == part), part)


def _common_leaf(kind: str, leaf: str) -> str:
    own = vocabulary()[MINDSPORE]["parameters_of"].get(kind, {})
    return own[leaf] if leaf in own else common_slot(MINDSPORE, f"parameters.{leaf}").partition(".")[2]


def _own_leaf(kind: str, leaf: str) -> str:
    listed = vocabulary()[MINDSPORE]["parameters_in"].get(kind, ())
    return next((own for own in listed if _common_leaf(kind, own) == leaf), leaf)
