"""Pictures and words in one space with a learned temperature: patches by unfold and by convolution, one tower each."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops
from mindspore.common.initializer import Zero, initializer

from held_out.fault import Fault
from held_out.weight import Weights

CHANNELS, SIDE, PATCH, WIDTH, HEADS, OUT, WORDS, TIME, BATCH = 2, 6, 2, 8, 2, 6, 17, 7, 5
PLACES, SIZE = (SIDE // PATCH) ** 2 + 1, WIDTH // HEADS


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.enter, self.leave = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, mask=None):
        h = self.norm1(x)  # @norm1
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]  # @joined @score @biased @attend
        h = self.enter(self.norm2(x))  # @norm2 @enter
        return x + self.leave(h * torch.sigmoid(1.702 * h))  # @gelu @leave


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = torch.nn.Linear(CHANNELS * PATCH**2, WIDTH, bias=False)
        self.start = torch.nn.Parameter(torch.zeros(WIDTH))
        self.image_places = torch.nn.Parameter(torch.zeros(PLACES, WIDTH))
        self.image_block, self.image_norm = Block(), torch.nn.LayerNorm(WIDTH)
        self.image_out = torch.nn.Parameter(torch.zeros(WIDTH, OUT))
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.text_places = torch.nn.Parameter(torch.zeros(TIME, WIDTH))
        self.text_block, self.text_norm = Block(), torch.nn.LayerNorm(WIDTH)
        self.text_out = torch.nn.Parameter(torch.zeros(WIDTH, OUT))
        self.logit_scale = torch.nn.Parameter(torch.zeros(()))

    def see(self, images):
        x = self.patch(F.unfold(images, PATCH, stride=PATCH).transpose(1, 2))  # @patch
        x = torch.cat([self.start.expand(len(x), 1, -1), x], dim=1) + self.image_places  # @started @placed
        return self.image_norm(self.image_block(x)[:, 0]) @ self.image_out  # @seen @see_out

    def read(self, tokens):
        mask = torch.full((TIME, TIME), float("-inf")).triu(1)  # @mask
        x = self.text_block(self.words(tokens) + self.text_places, mask)  # @worded
        x = self.text_norm(x)  # @read_norm
        return x[torch.arange(len(x)), tokens.argmax(dim=-1)] @ self.text_out  # @end @read_out

    def forward(self, images, tokens):
        return F.normalize(self.see(images), dim=-1), F.normalize(self.read(tokens), dim=-1)  # @unit


def compute_reference_loss(network, images, tokens):
    image, text = network(images, tokens)
    scale = network.logit_scale.exp()  # @scale
    logits = scale * image @ text.t()  # @logits
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2  # @rows @columns @loss


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm((WIDTH,), epsilon=1e-5) for _ in range(2))
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Dense(WIDTH, WIDTH)
        self.enter, self.leave = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

    def cut(self, x):
        """Heads become rows of the batch."""
        return x.reshape(len(x), -1, HEADS, SIZE).swapaxes(1, 2).reshape(len(x) * HEADS, -1, SIZE)

    def construct(self, x, mask=None):
        h = self.norm1(x)  # @norm1
        q, k, v = self.cut(self.query(h) * SIZE**-0.5), self.cut(self.key(h)), self.cut(self.value(h))  # @joined @score
        score = ops.bmm(q, k.swapaxes(1, 2))  # @score
        if mask is not None:
            score = score + mask  # @biased
        y = ops.bmm(ops.softmax(score), v).reshape(len(x), HEADS, -1, SIZE)  # @attend
        x = x + self.out(y.swapaxes(1, 2).reshape(x.shape))  # @attend
        h = self.enter(self.norm2(x))  # @norm2 @enter
        h = h / (1 + ops.exp(-1.702 * h))  # @gelu
        return x + self.leave(h)  # @leave


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(CHANNELS, WIDTH, PATCH, stride=PATCH, pad_mode="valid")
        self.first_place = ms.Parameter(initializer(Zero(), (WIDTH,)), name="first_place")
        self.start = ms.Parameter(initializer(Zero(), (WIDTH,)), name="start")
        self.places = ms.Parameter(initializer(Zero(), (PLACES - 1, WIDTH)), name="places")
        self.image_block, self.image_norm = Layer(), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.image_out = nn.Dense(WIDTH, OUT, has_bias=False)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.text_places = ms.Parameter(initializer(Zero(), (TIME, WIDTH)), name="text_places")
        self.text_block, self.text_norm = Layer(), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.text_out = nn.Dense(WIDTH, OUT, has_bias=False)
        self.logit_scale = ms.Parameter(initializer(Zero(), (1,)), name="logit_scale")
        self.mask = ms.Tensor(np.triu(np.full((TIME, TIME), -1e9), 1), ms.float32)  # @mask_made

    def see(self, images):
        x = self.patch(images).flatten(start_dim=2).swapaxes(1, 2) + self.places  # @patch @placed
        first = ops.tile((self.start + self.first_place).reshape(1, 1, -1), (len(x), 1, 1))  # @placed
        x = self.image_block(ops.cat((first, x), axis=1))  # @started
        return self.image_out(self.image_norm(x[:, 0]))  # @seen @see_out

    def read(self, tokens):
        x = self.text_block(self.words(tokens) + self.text_places, self.mask)  # @worded @mask
        end = ops.argmax(tokens, -1)  # @end
        x = ops.gather(x, end.reshape(-1, 1), 1, batch_dims=1).squeeze(1)  # @end
        return self.text_out(self.text_norm(x))  # @read_norm @read_out

    def construct(self, images, tokens):
        image, text = self.see(images), self.read(tokens)
        image = image / ops.sqrt((image * image).sum(-1, keepdims=True))  # @unit
        return image, text / ops.sqrt((text * text).sum(-1, keepdims=True))  # @unit


def compute_candidate_loss(network, images, tokens):
    image, text = network(images, tokens)
    logits = mint.matmul(image, text.T) * ops.exp(network.logit_scale)  # @logits @scale
    right = logits.diagonal().mean()  # @right
    rows, columns = ops.logsumexp(logits, 1).mean(), ops.logsumexp(logits, 0).mean()  # @rows @columns
    return 0.5 * (rows + columns) - right  # @loss


def convert(weights: Weights) -> Weights:
    names = {"start": "start", "text_places": "text_places", "words.weight": "words.embedding_table"}
    converted = {new: weights[old] for old, new in names.items()}
    converted["patch.weight"] = weights["patch.weight"].reshape(WIDTH, CHANNELS, PATCH, PATCH)  # @load
    converted["first_place"], converted["places"] = weights["image_places"][0], weights["image_places"][1:]
    converted["logit_scale"] = weights["logit_scale"].reshape(1)
    for tower in ("image", "text"):
        converted[f"{tower}_out.weight"] = weights[f"{tower}_out"].T
        path = f"{tower}_block"
        for norm in (f"{tower}_norm", f"{path}.norm1", f"{path}.norm2"):
            converted |= {f"{norm}.gamma": weights[f"{norm}.weight"], f"{norm}.beta": weights[f"{norm}.bias"]}
        for word in ("weight", "bias"):
            parts = np.split(weights[f"{path}.attention.in_proj_{word}"], 3)
            converted |= {f"{path}.{name}.{word}": parts[n] for n, name in enumerate(("query", "key", "value"))}
            converted[f"{path}.out.{word}"] = weights[f"{path}.attention.out_proj.{word}"]
            converted |= {f"{path}.{name}.{word}": weights[f"{path}.{name}.{word}"] for name in ("enter", "leave")}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(4300 + step)
    images = random.normal(size=(BATCH, CHANNELS, SIDE, SIDE)).astype(np.float32)
    tokens = random.integers(1, WORDS - 1, size=(BATCH, TIME))
    for row, end in enumerate((3, 6, 4, 5, 3)):
        tokens[row, end:] = 0
        tokens[row, end] = WORDS - 1
    return images, tokens


FAULTS = (
    Fault(
        "last word instead of the end", "end", "ops.argmax(tokens, -1)", "ops.full((BATCH,), TIME - 1, dtype=ms.int32)"
    ),
    Fault("gelu by the error function", "gelu", "h / (1 + ops.exp(-1.702 * h))", 'ops.gelu(h, approximate="none")'),
    Fault("words see one place too many", "biased mask", "-1e9), 1)", "-1e9), 2)", edit="mask_made"),
    Fault("temperature not exponentiated", "logits scale", "ops.exp(network.logit_scale)", "network.logit_scale"),
    Fault("words in both directions", "columns", "ops.logsumexp(logits, 0)", "ops.logsumexp(logits, 1)"),
    Fault("text detached", "logits", "text.T", "ops.stop_gradient(text).T", is_backward=True),
    Fault(
        "patches with channels last",
        "patch",
        "reshape(WIDTH, CHANNELS, PATCH, PATCH)",
        "reshape(WIDTH, PATCH, PATCH, CHANNELS).transpose(0, 3, 1, 2)",
        edit="load",
        parameter="patch.weight",
    ),
    Fault("reference takes the first patch", "seen", "(x)[:, 0]", "(x)[:, 1]", side="reference"),
    Fault(
        "scores not scaled, and the length by a sum",
        "score",
        "self.query(h) * SIZE**-0.5",
        "self.query(h)",
        second=("unit", "text / ops.sqrt((text * text)", "text / ((text * text)"),
    ),
)
