"""One program pads its sentences, the other puts them into one row: what is computed of padding is in one run alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tensorprobe
from tensorprobe.compare.result import Verdict

WORDS, WIDTH, PAD = 11, 8, 0
SENTENCES = [[3, 5, 2, 9], [4, 4, 10, 7, 6, 1], [8, 2, 5]]


class Model(nn.Module):
    """Attention over one mask, and the chances of the next word."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.words.padding_idx = padding
        self.query, self.key, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens)
        query, key = self.query(x), self.key(x)
        if mask.ndim == 3:  # of a padded batch
            scores = query @ key.transpose(-1, -2) / WIDTH**0.5
            mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ x
        else:
            mixed = F.scaled_dot_product_attention(query[None], key[None], x[None], attn_mask=mask)[0]
        return self.out(x + mixed)  # type: ignore[no-any-return]


def train_padded(path: Path) -> Path:
    longest = max(map(len, SENTENCES))
    tokens = torch.tensor([one + [PAD] * (longest - len(one)) for one in SENTENCES])
    model = Model(PAD)
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        mask = torch.ones(longest, longest, dtype=torch.bool).tril()[None] & (tokens != PAD)[:, None]
        logits = model(tokens, mask)
        labels = torch.where(tokens == PAD, -100, tokens)[:, 1:]
        F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten()).backward()
    return path


def train_packed(path: Path, fault: str = "") -> Path:
    lengths = torch.tensor([len(one) for one in SENTENCES])
    row = torch.tensor([word for sentence in SENTENCES for word in sentence])
    model = Model(None)
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        owner = torch.repeat_interleave(torch.arange(len(SENTENCES)), lengths)
        mask = torch.ones(len(row), len(row), dtype=torch.bool).tril()
        if fault != "sentences see each other":
            mask = mask & (owner[:, None] == owner[None])
        logits = model(row, mask)
        following = row.roll(-1)
        following[-1 if fault == "last words have a next one" else lengths.cumsum(0) - 1] = -1
        keep = following >= 0
        picked = logits[keep].gather(1, following[keep, None]).squeeze(1)
        ((logits[keep].logsumexp(1) - picked).sum() / keep.sum()).backward()
    return path


def compare(tmp_path: Path, fault: str = "") -> Verdict:
    candidate = train_packed(tmp_path / "candidate", fault)
    return tensorprobe.compare(train_padded(tmp_path / "reference"), candidate, processes=1).verdict


def test_sentences_in_one_row_are_those_that_are_padded(tmp_path: Path) -> None:
    verdict = compare(tmp_path)
    assert verdict.kind == "agree", verdict


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        ("sentences see each other", "scaled_dot_product_attention"),
        ("last words have a next one", "logsumexp"),
    ],
)
def test_a_mistake_is_not_named_where_padding_begins(tmp_path: Path, fault: str, call: str) -> None:
    """Nor by an argument that only gradients depend on, as that of the embedding does that names the padding."""
    verdict = compare(tmp_path, fault)
    assert verdict.call is not None and call in verdict.call.candidate[-1].name, verdict


# -- what is put elsewhere, and said by whole numbers ------------------------------------------------------------------


class Sharded(nn.Module):
    """A network in one piece, or in the shards that two ranks would have, in one process."""

    def __init__(self, *, is_sharded: bool, has_bias_twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first = nn.Embedding(WORDS + 1, WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.second, self.head = nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS + 1)
        self.is_sharded, self.has_bias_twice = is_sharded, has_bias_twice
        if is_sharded:
            for name, axis in (("first", 0), ("second", 1), ("head", 0)):
                layer = getattr(self, name)
                delattr(self, name)
                shards = [nn.Parameter(one.clone()) for one in layer.weight.detach().chunk(2, axis)]
                self.register_module(f"{name}_weight", nn.ParameterList(shards))
                biases = [layer.bias.detach()] if axis else layer.bias.detach().chunk(2)
                self.register_module(f"{name}_bias", nn.ParameterList([nn.Parameter(one.clone()) for one in biases]))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x + (self.add_shards(x) if self.is_sharded else self.second(F.gelu(self.first(x))))
        if not self.is_sharded:
            return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
        shards = [F.linear(x, *one) for one in zip(self.head_weight, self.head_bias, strict=True)]
        return self.find_loss(shards, targets)

    def add_shards(self, x: Tensor) -> Tensor:
        parts = [F.gelu(F.linear(x, *one)) for one in zip(self.first_weight, self.first_bias, strict=True)]
        (bias,) = self.second_bias
        own = bias if self.has_bias_twice else None
        left, right = (F.linear(part, weight, own) for part, weight in zip(parts, self.second_weight, strict=True))
        return left + right if self.has_bias_twice else left + right + bias

    def find_loss(self, shards: list[Tensor], targets: Tensor) -> Tensor:
        highest = torch.stack([one.detach().amax(-1) for one in shards]).amax(0)
        total, picked = torch.zeros_like(highest), torch.zeros_like(highest)
        for rank, shard in enumerate(shards):
            outside = targets // shard.shape[-1] != rank
            place = (targets - rank * shard.shape[-1]).masked_fill(outside, 0)
            chosen = (shard - highest[..., None]).gather(-1, place[..., None]).squeeze(-1)
            picked, total = (
                picked + chosen.masked_fill(outside, 0.0),
                total + (shard - highest[..., None]).exp().sum(-1),
            )
        return (total.log() - picked).mean()


def train_sharded(path: Path, **options: bool) -> Path:
    model = Sharded(**options)
    words = torch.randint(0, WORDS, (4, 9), generator=torch.Generator().manual_seed(3))
    with tensorprobe.capture(model, str(path), level="L1", task="tensor"):
        for part in words.chunk(2) if model.is_sharded else [words]:
            (model(part[:, :-1], part[:, 1:]) / (2 if model.is_sharded else 1)).backward()
    return path


@pytest.mark.parametrize("has_bias_twice", [False, True])
def test_a_bias_that_is_added_by_both_shards_is_named_and_no_whole_numbers(
    tmp_path: Path, has_bias_twice: bool
) -> None:
    paths = (
        train_sharded(tmp_path / "reference", is_sharded=False),
        train_sharded(tmp_path / "candidate", is_sharded=True, has_bias_twice=has_bias_twice),
    )
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    if not has_bias_twice:
        assert verdict.kind == "agree", verdict
    else:
        assert verdict.call is not None, verdict
        assert verdict.call.candidate[-1].op == "linear", verdict


# -- what is no padding ------------------------------------------------------------------------------------------------


def train_masked(path: Path, kept: int | None) -> Path:
    """`kept`: of six words, so many count; the others are set to zero, but only in one run."""
    torch.manual_seed(0)
    words, layer, out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
    tokens = torch.randint(0, WORDS, (3, 6), generator=torch.Generator().manual_seed(1))
    with tensorprobe.capture(nn.ModuleList([words, layer, out]), str(path), level="L1", task="tensor"):
        states = layer(words(tokens))
        if kept is not None:
            states = states * (torch.arange(6) < kept)[None, :, None]
        out(torch.tanh(states).mean(1)).square().sum().backward()
    return path


def test_a_mask_that_only_one_run_has_is_named_where_it_is_taken(tmp_path: Path) -> None:
    paths = train_masked(tmp_path / "reference", None), train_masked(tmp_path / "candidate", 5)
    verdict = tensorprobe.compare(*paths, processes=1).verdict
    assert verdict.call is not None and "mul" in verdict.call.candidate[-1].name, verdict
