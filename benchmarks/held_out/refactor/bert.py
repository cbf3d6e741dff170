"""Masked words, and does one sentence follow the other; the logits of masked words alone after the refactor."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, PLACES, TYPES, WIDTH, HEADS, HIDDEN, LAYERS, TIME, BATCH = 23, 12, 2, 24, 4, 36, 2, 9, 4
SIZE, EPSILON, IGNORED, PAD = WIDTH // HEADS, 1e-3, -100, 0


class BertEmbeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH)
        self.position_embeddings = nn.Embedding(PLACES, WIDTH)
        self.token_type_embeddings = nn.Embedding(TYPES, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=EPSILON)

    def forward(self, input_ids, token_type_ids):
        inputs_embeds = self.word_embeddings(input_ids)  # @words
        position_ids = torch.arange(input_ids.size(1)).unsqueeze(0)
        token_type_embeddings = self.token_type_embeddings(token_type_ids)  # @types
        embeddings = inputs_embeds + token_type_embeddings  # @typed
        embeddings = embeddings + self.position_embeddings(position_ids)  # @places
        return self.LayerNorm(embeddings)  # @start_norm


class BertSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def transpose_for_scores(self, x):
        return x.view(*x.size()[:-1], HEADS, SIZE).permute(0, 2, 1, 3)  # @heads

    def forward(self, hidden_states, attention_mask):
        key_layer = self.transpose_for_scores(self.key(hidden_states))  # @key @heads
        value_layer = self.transpose_for_scores(self.value(hidden_states))  # @value @heads
        query_layer = self.transpose_for_scores(self.query(hidden_states))  # @query @heads
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))  # @scores
        attention_scores = attention_scores / SIZE**0.5 + attention_mask  # @scores @masked
        attention_probs = F.softmax(attention_scores, dim=-1)  # @soft
        context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()  # @mixed
        return context_layer.view(*hidden_states.shape)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.attention_output = BertSelfAttention(), nn.Linear(WIDTH, WIDTH)
        self.attention_norm, self.output_norm = nn.LayerNorm(WIDTH, eps=EPSILON), nn.LayerNorm(WIDTH, eps=EPSILON)
        self.intermediate, self.output = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden_states, attention_mask):
        attention = self.attention_output(self.attention(hidden_states, attention_mask))  # @out
        attention = self.attention_norm(attention + hidden_states)  # @added @norm1
        intermediate = F.gelu(self.intermediate(attention))  # @wide @gelu
        return self.output_norm(self.output(intermediate) + attention)  # @narrow @added2 @norm2


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings()
        self.layer = nn.ModuleList([BertLayer() for _ in range(LAYERS)])
        self.pooler, self.seq_relationship = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.transform, self.transform_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=EPSILON)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def forward(self, input_ids, token_type_ids, attention_mask):
        hidden_states = self.embeddings(input_ids, token_type_ids)
        extended = attention_mask[:, None, None, :].to(hidden_states.dtype)  # @mask
        extended = (1.0 - extended) * torch.finfo(hidden_states.dtype).min  # @mask
        for layer in self.layer:
            hidden_states = layer(hidden_states, extended)
        pooled = torch.tanh(self.pooler(hidden_states[:, 0]))  # @first @pooled
        transformed = self.transform_norm(F.gelu(self.transform(hidden_states)))  # @transform @head_norm
        return self.decoder(transformed), self.seq_relationship(pooled)  # @decoded @relation


def compute_reference_loss(network, input_ids, token_type_ids, attention_mask, labels, follows):
    scores, relation = network(input_ids, token_type_ids, attention_mask)
    scores, labels = scores.float().view(-1, WORDS), labels.view(-1)
    masked_lm_loss = F.cross_entropy(scores, labels, ignore_index=IGNORED)  # @lm @picked
    next_sentence_loss = F.cross_entropy(relation.float(), follows)  # @next
    return masked_lm_loss + next_sentence_loss  # @loss


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))  # @mlp_made

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, HEADS, SIZE))  # @query @key @value @heads
        q, k, v = qkv.transpose(1, 3).unbind(2)  # @heads
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # @scores @masked @soft @mixed
        return self.proj(y.transpose(1, 2).flatten(2))  # @out

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.ln1(x + self.attend(x, mask))  # @added @norm1
        return self.ln2(x + self.mlp(x))  # @wide @gelu @narrow @added2 @norm2


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(PLACES, WIDTH))
        self.types = nn.Parameter(torch.zeros(TYPES, WIDTH))
        self.ln = nn.LayerNorm(WIDTH, EPSILON)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.pool, self.follow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.head, self.head_ln = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, EPSILON)
        self.word_bias = nn.Parameter(torch.zeros(WORDS))

    def encode(self, tokens: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.places[: tokens.shape[1]]  # @words @places
        x = x + torch.where(types.bool().unsqueeze(-1), self.types[1], self.types[0])  # @types @typed
        x = self.ln(x)  # @start_norm
        mask = mask.bool()[:, None, None]  # @mask
        for block in self.blocks:
            x = block(x, mask)
        return x

    def guess(self, x: Tensor) -> Tensor:
        x = self.head_ln(F.gelu(self.head(x)))  # @transform @head_norm
        return torch.addmm(self.word_bias, x, self.words.weight.t())  # @decoded

    def relate(self, x: Tensor) -> Tensor:
        return self.follow(torch.tanh(self.pool(x[:, 0])))  # @first @pooled @relation


def compute_candidate_loss(network, tokens, types, mask, labels, follows):
    x = network.encode(tokens, types, mask)
    places = (labels != IGNORED).flatten().nonzero().squeeze(1)  # @picked
    hidden = x.flatten(0, 1).index_select(0, places)  # @picked @gathered
    guess = network.guess(hidden).float()
    loss = F.cross_entropy(guess, labels.flatten()[places])  # @lm
    return loss + F.cross_entropy(network.relate(x).float(), follows)  # @next @loss


def convert(weights: Weights) -> Weights:
    path = "embeddings"
    converted = {"words.weight": weights[f"{path}.word_embeddings.weight"], "word_bias": weights["decoder.bias"]}
    converted["places"] = weights[f"{path}.position_embeddings.weight"]
    converted["types"] = weights[f"{path}.token_type_embeddings.weight"]
    names = {"embeddings.LayerNorm": "ln", "pooler": "pool", "seq_relationship": "follow"}
    names |= {"transform": "head", "transform_norm": "head_ln"}
    for number in range(LAYERS):
        old, new = f"layer.{number}", f"blocks.{number}"
        names |= {f"{old}.attention_output": f"{new}.proj", f"{old}.attention_norm": f"{new}.ln1"}
        names |= {f"{old}.output_norm": f"{new}.ln2", f"{old}.intermediate": f"{new}.mlp.0"}
        names |= {f"{old}.output": f"{new}.mlp.2"}
        for word in ("weight", "bias"):
            parts = [weights[f"{old}.attention.{name}.{word}"] for name in ("query", "key", "value")]
            converted[f"{new}.qkv.{word}"] = np.concatenate(parts)
    for old, new in names.items():
        converted |= {f"{new}.{word}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8600 + step)
    words = random.integers(2, WORDS, size=(BATCH, TIME))
    mask = (np.arange(TIME) < np.array([8, 6, 7, 5])[:, None]).astype(np.int64)
    types = (np.arange(TIME) >= np.array([4, 3, 5, 3])[:, None]) * mask
    is_hidden = (random.random(words.shape) < 0.3) & (mask > 0)
    is_hidden[:, 2] = True
    tokens = np.where(is_hidden, 1, words) * mask + PAD * (1 - mask)
    return tokens, types, mask, np.where(is_hidden, words, IGNORED), random.integers(2, size=BATCH)


FAULTS = (
    Fault(
        "types of the sentences exchanged",
        "types typed",
        "self.types[1], self.types[0]",
        "self.types[0], self.types[1]",
    ),
    Fault(
        "places counted from one", "places", "self.places[: tokens.shape[1]]", "self.places[1 : tokens.shape[1] + 1]"
    ),
    Fault("sum not normed", "start_norm query key value", "x = self.ln(x)", "x = x"),
    Fault("mask of what is hidden", "mask masked", "mask.bool()[:", "mask.logical_not()[:"),
    Fault(
        "heads laid out as size", "heads query key value", "(3, HEADS, SIZE))", "(3, SIZE, HEADS)).transpose(-1, -2)"
    ),
    Fault("gelu by tanh", "gelu", "nn.GELU()", 'nn.GELU(approximate="tanh")', edit="mlp_made"),
    Fault(
        "sum beside the norm", "added norm1", "self.ln1(x + self.attend(x, mask))", "x + self.ln1(self.attend(x, mask))"
    ),
    Fault("pools the last word", "first pooled", "x[:, 0]", "x[:, -1]"),
    Fault(
        "masked words in the order of time", "gathered picked lm", "x.flatten(0, 1)", "x.transpose(0, 1).flatten(0, 1)"
    ),
    Fault(
        "bias of the words left out",
        "decoded",
        "torch.addmm(self.word_bias, x, self.words.weight.t())",
        "torch.mm(x, self.words.weight.t())",
    ),
    Fault(
        "words do not learn from the head",
        "decoded",
        "self.words.weight.t())",
        "self.words.weight.t().detach())",
        is_backward=True,
    ),
    Fault(
        "reference divides by all words",
        "lm",
        "ignore_index=IGNORED)",
        'ignore_index=IGNORED, reduction="sum") / len(labels)',
        side="reference",
    ),
)
