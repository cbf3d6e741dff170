"""A summarizer that writes its own words or copies: packed and scattered in one, masked and by products in the port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from held_out.fault import Fault
from held_out.weight import Weights

WORDS, UNKNOWN, EMBED, WIDTH, TIME, OUT, BATCH = 11, 2, 6, 5, 6, 4, 3
ALL, PAD, OTHER, COVER, FEW = WORDS + UNKNOWN, 0, 1, 0.7, 1e-8


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, EMBED)
        self.encoder = torch.nn.LSTM(EMBED, WIDTH, batch_first=True, bidirectional=True)
        self.reduce_h, self.reduce_c = torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.enter = torch.nn.Linear(EMBED + 2 * WIDTH, EMBED)
        self.decoder = torch.nn.LSTMCell(EMBED, WIDTH)
        self.to_source = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.to_state, self.to_cover = torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Linear(1, WIDTH, bias=False)
        self.to_score = torch.nn.Linear(WIDTH, 1, bias=False)
        self.switch = torch.nn.Linear(4 * WIDTH + EMBED, 1)
        self.out = torch.nn.Linear(3 * WIDTH, EMBED)
        self.bias = torch.nn.Parameter(torch.zeros(WORDS))

    def encode(self, source, lengths):
        packed = pack_padded_sequence(self.words(source), lengths, batch_first=True, enforce_sorted=False)  # @words
        states, (h, c) = self.encoder(packed)  # @encode @gates @cell @hidden @keep
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=TIME)  # @states
        h = torch.tanh(self.reduce_h(h.transpose(0, 1).flatten(1)))  # @both_h @reduce_h
        c = torch.tanh(self.reduce_c(c.transpose(0, 1).flatten(1)))  # @both_c @reduce_c
        return states, h, c

    def forward(self, source, every, lengths, given):
        states, h, c = self.encode(source, lengths)
        is_empty = torch.arange(TIME) >= lengths.unsqueeze(1)  # @empty
        from_source = self.to_source(states)  # @from_source
        context, cover = states.new_zeros(BATCH, 2 * WIDTH), states.new_zeros(BATCH, TIME)  # @begin
        chances, repeated = [], []
        for time in range(OUT):
            x = self.enter(torch.cat([self.words(given[:, time]), context], dim=1))  # @given @enter
            h, c = self.decoder(x, (h, c))  # @decode @gates @cell @hidden
            state = torch.cat([h, c], dim=1)  # @joined
            score = from_source + self.to_state(state).unsqueeze(1) + self.to_cover(cover.unsqueeze(2))  # @add @covered
            score = self.to_score(torch.tanh(score)).squeeze(2)  # @score
            part = score.masked_fill(is_empty, float("-inf")).softmax(dim=1)  # @masked @part
            context = torch.bmm(part.unsqueeze(1), states).squeeze(1)  # @context
            repeated.append(torch.minimum(part, cover).sum(dim=1))  # @repeated
            cover = cover + part  # @cover
            own = torch.sigmoid(self.switch(torch.cat([context, state, x], dim=1)))  # @switch_in @own
            h_out = self.out(torch.cat([h, context], dim=1))  # @out_in @out
            word = F.linear(h_out, self.words.weight, self.bias).softmax(dim=1)  # @word @softmax
            chance = F.pad(own * word, (0, UNKNOWN))  # @written @pad
            chances.append(chance.scatter_add(1, every, (1 - own) * part))  # @copied @scatter
        return torch.stack(chances, dim=1), torch.stack(repeated, dim=1)  # @stack


def compute_reference_loss(network, source, every, lengths, given, wanted, step):
    chance, repeated = network(source, every, lengths, given)
    losses = -torch.log(chance.gather(2, wanted.unsqueeze(2)).squeeze(2) + FEW)  # @picked @log
    if step > 0:
        losses = losses + COVER * repeated  # @cover_loss
    counted = (wanted != PAD).float()  # @counted
    return ((losses * counted).sum(dim=1) / counted.sum(dim=1)).mean()  # @by_length @loss


class Step(nn.Cell):
    """One step of an LSTM; the kernels of input and state are one matrix, its columns are the gates."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = ms.Parameter(ops.zeros((EMBED + WIDTH, 4 * WIDTH)), name="kernel")
        self.bias = ms.Parameter(ops.zeros((2, 4 * WIDTH)), name="bias")

    def construct(self, x, h, c):
        every = ops.matmul(ops.cat((x, h), axis=1), self.kernel) + self.bias.sum(0)  # @gates @encode @decode
        i, f, g, o = ops.split(every, WIDTH, axis=1)  # @gates @encode @decode @gate_parts
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)  # @cell @encode @decode
        return ops.sigmoid(o) * ops.tanh(c), c  # @hidden @encode @decode


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.words = ms.Parameter(ops.zeros((WORDS, EMBED)), name="words")
        self.onward, self.back, self.decoder = Step(), Step(), Step()
        self.reduce = nn.CellList([nn.Dense(2 * WIDTH, WIDTH, activation="tanh") for _ in range(2)])
        self.enter = nn.Dense(EMBED + 2 * WIDTH, EMBED)
        self.to_source = nn.Dense(2 * WIDTH, WIDTH, has_bias=False)
        self.to_h, self.to_c = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.to_cover = ms.Parameter(ops.zeros((WIDTH,)), name="to_cover")
        self.to_score = ms.Parameter(ops.zeros((WIDTH,)), name="to_score")
        self.switch, self.out = nn.Dense(4 * WIDTH + EMBED, 1), nn.Dense(3 * WIDTH, EMBED)
        self.bias = ms.Parameter(ops.zeros((WORDS,)), name="bias")

    def read(self, step, x, full, times):
        """States of one direction; where the text has ended, the state stays."""
        h = c = ops.zeros((BATCH, WIDTH), ms.float32)
        states = [None] * TIME
        for time in times:
            new_h, new_c = step(x[:, time], h, c)
            on = full[:, time : time + 1]
            h, c = on * new_h + (1 - on) * h, on * new_c + (1 - on) * c  # @keep @encode
            states[time] = h * on  # @states
        return ops.stack(states, axis=1), h, c  # @states

    def construct(self, source, every, lengths, given):
        full = (ops.arange(TIME) < lengths.expand_dims(1)).astype(ms.float32)  # @empty
        x = ops.gather(self.words, source, 0)  # @words
        onward, h1, c1 = self.read(self.onward, x, full, range(TIME))
        back, h2, c2 = self.read(self.back, x, full, reversed(range(TIME)))
        states = ops.cat((onward, back), axis=2)  # @states @directions
        h = self.reduce[0](ops.cat((h1, h2), axis=1))  # @both_h @reduce_h
        c = self.reduce[1](ops.cat((c1, c2), axis=1))  # @both_c @reduce_c
        from_source = self.to_source(states)  # @from_source
        bias = (full - 1) * 1e9  # @masked @bias
        context, cover = ops.zeros((BATCH, 2 * WIDTH), ms.float32), ops.zeros((BATCH, TIME), ms.float32)  # @begin
        kept = []
        for word in ops.unstack(ops.gather(self.words, given, 0), axis=1):  # @given
            x = self.enter(ops.cat((word, context), axis=1))  # @enter
            h, c = self.decoder(x, h, c)
            state = self.to_h(h) + self.to_c(c)  # @joined @add @state
            score = ops.tanh(from_source + state.expand_dims(1) + cover.expand_dims(2) * self.to_cover)  # @add @covered
            part = ops.softmax(ops.matmul(score, self.to_score) + bias, 1)  # @score @masked @part
            context = (part.expand_dims(2) * states).sum(1)  # @context
            kept.append((h, c, x, context, part, ops.minimum(part, cover)))  # @repeated
            cover = cover + part  # @cover
        h, c, x, context, part, least = (ops.stack(one, axis=1) for one in zip(*kept, strict=True))  # @stack
        own = ops.sigmoid(self.switch(ops.cat((context, h, c, x), axis=2)))  # @switch_in @own
        h_out = self.out(ops.cat((h, context), axis=2))  # @out_in @out
        word = ops.softmax(ops.matmul(h_out, self.words.T) + self.bias, -1)  # @word @softmax
        where = ops.one_hot(every, ALL).astype(ms.float32)  # @where
        copied = ops.bmm((1 - own) * part, where)  # @copied @scatter
        none = ops.zeros((BATCH, OUT, UNKNOWN), ms.float32)
        return ops.cat((own * word, none), axis=2) + copied, least.sum(2)  # @written @pad @scatter @repeated


def compute_candidate_loss(network, source, every, lengths, given, wanted, step):
    chance, repeated = network(source, every, lengths, given)
    goal = ops.one_hot(wanted, ALL).astype(ms.float32)  # @goal
    losses = -ops.log((chance * goal).sum(-1) + FEW)  # @picked @log
    losses = losses + (COVER if step >= 1 else 0.0) * repeated  # @cover_loss
    counted = ops.cast(wanted != PAD, ms.float32)  # @counted
    weight = counted / (BATCH * counted.sum(1, keepdims=True))  # @by_length @weight
    return (losses * weight).sum()  # @loss


def convert(weights: Weights) -> Weights:
    converted = {"words": weights["words.weight"], "bias": weights["bias"]}
    steps = {"encoder.{}_l0": "onward", "encoder.{}_l0_reverse": "back", "decoder.{}": "decoder"}  # @load_steps
    for path, name in steps.items():
        kernels = [weights[path.format(f"weight_{word}")].T for word in ("ih", "hh")]
        biases = [weights[path.format(f"bias_{word}")] for word in ("ih", "hh")]
        converted |= {f"{name}.kernel": np.concatenate(kernels), f"{name}.bias": np.stack(biases)}
    for number, name in enumerate(("reduce_h", "reduce_c")):
        converted |= {f"reduce.{number}.{word}": weights[f"{name}.{word}"] for word in ("weight", "bias")}
    for name in ("enter", "switch", "out"):
        converted |= {f"{name}.{word}": weights[f"{name}.{word}"] for word in ("weight", "bias")}
    from_state = weights["to_state.weight"]
    converted |= {"to_h.weight": from_state[:, :WIDTH], "to_c.weight": from_state[:, WIDTH:]}  # @load_state
    converted |= {"to_h.bias": weights["to_state.bias"], "to_source.weight": weights["to_source.weight"]}
    return converted | {"to_cover": weights["to_cover.weight"][:, 0], "to_score": weights["to_score.weight"][0]}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    """Words that are not known have numbers of their own after the others."""
    random = np.random.default_rng(6200 + step)
    every, lengths = random.integers(2, ALL, size=(BATCH, TIME)), np.array([4, 6, 3])
    every[:, 0], every[1, 4] = [WORDS, WORDS + 1, 3], every[1, 1]
    every[np.arange(TIME) >= lengths[:, None]] = PAD
    wanted = random.integers(2, WORDS, size=(BATCH, OUT))
    wanted[:, 0], wanted[2, 3], wanted[0, 2:] = every[:, 0], PAD, PAD
    given = np.concatenate([np.full((BATCH, 1), 2), wanted[:, :-1]], axis=1)
    return np.where(every < WORDS, every, OTHER), every, lengths, np.where(given < WORDS, given, OTHER), wanted


FAULTS = (
    Fault("forget and input gates exchanged", "gate_parts gates cell", "i, f, g, o =", "f, i, g, o ="),
    Fault(
        "state goes on over the end",
        "keep",
        "on * new_h + (1 - on) * h, on * new_c + (1 - on) * c",
        "new_h, new_c",
    ),
    Fault("states at the end not emptied", "states from_source", "h * on", "h", edit="states", has_effect=False),
    Fault("states stored from the other end", "states", "states[time] = h", "states[TIME - 1 - time] = h"),
    Fault("directions exchanged at the end", "both_h reduce_h", "ops.cat((h1, h2)", "ops.cat((h2, h1)"),
    Fault("mask one word too long", "empty keep", "ops.arange(TIME) <", "ops.arange(TIME) <="),
    Fault("mask of the wrong sign", "bias masked", "(full - 1) * 1e9", "(1 - full) * 1e9"),
    Fault("coverage starts with one", "begin covered", "ops.zeros((BATCH, TIME)", "ops.ones((BATCH, TIME)"),
    Fault("coverage of the last word alone", "cover covered", "cover = cover + part", "cover = part"),
    Fault(
        "coverage passes no gradient",
        "cover part covered repeated",
        "cover = cover + part",
        "cover = cover + ops.stop_gradient(part)",
        is_backward=True,
    ),
    Fault("switch the other way round", "copied scatter", "(1 - own) * part", "own * part"),
    Fault("switch takes the state before the context", "switch_in own", "(context, h, c, x)", "(h, c, context, x)"),
    Fault(
        "written words not tied back",
        "word",
        "self.words.T",
        "ops.stop_gradient(self.words).T",
        is_backward=True,
    ),
    Fault("repetition counted too early", "cover_loss", "step >= 1", "step >= 0"),
    Fault("repetition counted too late", "cover_loss", "step >= 1", "step > 1", steps=2, first_step=1),
    Fault(
        "repeated words by their most",
        "repeated",
        "ops.minimum(part, cover)",
        "ops.maximum(part, cover)",
        steps=2,
        first_step=1,
    ),
    Fault(
        "mean over all words",
        "by_length weight",
        "counted / (BATCH * counted.sum(1, keepdims=True))",
        "counted / counted.sum()",
    ),
    Fault(
        "columns of the state exchanged",
        "joined state add",
        '"to_h.weight": from_state[:, :WIDTH], "to_c.weight": from_state[:, WIDTH:]',
        '"to_h.weight": from_state[:, WIDTH:], "to_c.weight": from_state[:, :WIDTH]',
        edit="load_state",
        parameter="to_state",
    ),
    Fault("reference copies to the last place alone", "scatter", "scatter_add(", "scatter(", side="reference"),
    Fault(
        "context by the mean, and the logarithm of a larger number",
        "context",
        "(part.expand_dims(2) * states).sum(1)",
        "(part.expand_dims(2) * states).mean(1)",
        second=("log", " + FEW)", " + 1e-2)"),
    ),
)
