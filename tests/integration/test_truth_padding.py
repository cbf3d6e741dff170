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
