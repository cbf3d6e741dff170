"""Sequences and pairs of residues that inform each other, run twice; the port joins projections and has pairs last."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

LETTERS, ROWS, SIZE, MSA, PAIR, HEADS, HEAD, INNER, BINS, LAYERS = 6, 4, 5, 12, 10, 2, 4, 8, 6, 2
REACH, EPSILON, OUTER, FIRST, LAST, PAIR_WEIGHT, LETTER_WEIGHT = 2, 1e-2, 1e-3, 1.0, 5.0, 0.3, 0.4


def mask_bias(mask):
    return 1e9 * (mask - 1)  # @bias_masked


class GatedAttention(torch.nn.Module):
    """Over the last but one axis, for each of the axes before."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v = (torch.nn.Linear(dim, HEADS * HEAD, bias=False) for _ in range(3))
        self.linear_g, self.linear_o = torch.nn.Linear(dim, HEADS * HEAD), torch.nn.Linear(HEADS * HEAD, dim)

    def forward(self, x, *biases):
        q, k, v = (one(x).unflatten(-1, (HEADS, HEAD)) for one in (self.linear_q, self.linear_k, self.linear_v))  # @qkv
        a = torch.einsum("bqhc,bkhc->bhqk", q * HEAD**-0.5, k)  # @scores @scale
        for bias in biases:
            a = a + bias  # @biased
        o = torch.einsum("bhqk,bkhc->bqhc", a.softmax(dim=-1), v).flatten(2)  # @soft @mixed
        return self.linear_o(torch.sigmoid(self.linear_g(x)) * o)  # @gate @gated @leave


class TriangleMultiplication(torch.nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation
        self.norm_in, self.norm_out = torch.nn.LayerNorm(PAIR, eps=EPSILON), torch.nn.LayerNorm(INNER, eps=EPSILON)
        self.a_p, self.a_g, self.b_p, self.b_g = (torch.nn.Linear(PAIR, INNER) for _ in range(4))
        self.z, self.g = torch.nn.Linear(INNER, PAIR), torch.nn.Linear(PAIR, PAIR)

    def forward(self, z, mask):
        z = self.norm_in(z)  # @tri_norm
        a = torch.sigmoid(self.a_g(z)) * self.a_p(z) * mask.unsqueeze(-1)  # @tri_parts @tri_masked
        b = torch.sigmoid(self.b_g(z)) * self.b_p(z) * mask.unsqueeze(-1)  # @tri_parts @tri_masked
        x = self.norm_out(torch.einsum(self.equation, a, b))  # @outgoing @incoming @tri_norm_out
        return self.z(x) * torch.sigmoid(self.g(z))  # @tri_leave @tri_gate


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row_norm, self.column_norm, self.outer_norm, self.msa_norm = (
            torch.nn.LayerNorm(MSA, eps=EPSILON) for _ in range(4)
        )
        self.bias_norm, self.start_norm, self.pair_norm = (torch.nn.LayerNorm(PAIR, eps=EPSILON) for _ in range(3))
        self.row, self.column, self.start = GatedAttention(MSA), GatedAttention(MSA), GatedAttention(PAIR)
        self.row_bias = torch.nn.Linear(PAIR, HEADS, bias=False)
        self.start_bias = torch.nn.Linear(PAIR, HEADS, bias=False)
        self.msa1, self.msa2 = torch.nn.Linear(MSA, 2 * MSA), torch.nn.Linear(2 * MSA, MSA)
        self.pair1, self.pair2 = torch.nn.Linear(PAIR, 2 * PAIR), torch.nn.Linear(2 * PAIR, PAIR)
        self.left, self.right = torch.nn.Linear(MSA, INNER), torch.nn.Linear(MSA, INNER)
        self.outer = torch.nn.Linear(INNER * INNER, PAIR)
        self.tri_out, self.tri_in = TriangleMultiplication("ikc,jkc->ijc"), TriangleMultiplication("kic,kjc->ijc")

    def outer_product_mean(self, m, mask):
        m = self.outer_norm(m)  # @outer_norm
        a, b = self.left(m) * mask.unsqueeze(-1), self.right(m) * mask.unsqueeze(-1)  # @outer_parts @outer_masked
        outer = torch.einsum("sic,sjd->ijcd", a, b).flatten(2)  # @outer
        return self.outer(outer) / (torch.einsum("si,sj->ij", mask, mask).unsqueeze(-1) + OUTER)  # @outer_out @counted

    def forward(self, m, z, msa_mask, pair_mask):
        bias = self.row_bias(self.bias_norm(z)).permute(2, 0, 1)  # @pair_bias
        m = m + self.row(self.row_norm(m), mask_bias(msa_mask)[:, None, None], bias)  # @row_norm @added_row
        columns = self.column_norm(m.transpose(0, 1))  # @column_norm
        m = m + self.column(columns, mask_bias(msa_mask.t())[:, None, None]).transpose(0, 1)  # @added_column
        m = m + self.msa2(F.relu(self.msa1(self.msa_norm(m))))  # @msa_relu @added_msa
        z = z + self.outer_product_mean(m, msa_mask)  # @added_outer
        z = z + self.tri_out(z, pair_mask)  # @added_out
        z = z + self.tri_in(z, pair_mask)  # @added_in
        x = self.start_norm(z)  # @start_norm
        bias = self.start_bias(x).permute(2, 0, 1)  # @start_bias
        z = z + self.start(x, mask_bias(pair_mask)[:, None, None], bias)  # @added_start
        return m, z + self.pair2(F.relu(self.pair1(self.pair_norm(z))))  # @pair_relu @added_pair


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tf_i, self.tf_j = torch.nn.Linear(LETTERS, PAIR), torch.nn.Linear(LETTERS, PAIR)
        self.tf_m, self.msa = torch.nn.Linear(LETTERS, MSA), torch.nn.Linear(LETTERS, MSA)
        self.relpos = torch.nn.Linear(2 * REACH + 1, PAIR)
        self.again_m, self.again_z = torch.nn.LayerNorm(MSA, eps=EPSILON), torch.nn.LayerNorm(PAIR, eps=EPSILON)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
        self.letter_head, self.distance_head = torch.nn.Linear(MSA, LETTERS), torch.nn.Linear(PAIR, BINS)

    def embed(self, letters):
        known = F.one_hot(letters, LETTERS).float()
        target = known[0]
        m = self.msa(known) + self.tf_m(target)  # @entered
        z = self.tf_i(target)[:, None] + self.tf_j(target)[None]  # @crossed
        apart = torch.arange(SIZE)[:, None] - torch.arange(SIZE)[None]  # @apart
        apart = apart.clamp(-REACH, REACH) + REACH  # @apart @reached
        return m, z + self.relpos(F.one_hot(apart, 2 * REACH + 1).float())  # @relative

    def iterate(self, letters, msa_mask, pair_mask, first, pair):
        m, z = self.embed(letters)
        m = torch.cat([(m[0] + self.again_m(first))[None], m[1:]])  # @again_m
        z = z + self.again_z(pair)  # @again_z
        for block in self.blocks:
            m, z = block(m, z, msa_mask, pair_mask)
        return m, z

    def forward(self, letters, msa_mask, pair_mask):
        with torch.no_grad():
            m, z = self.iterate(letters, msa_mask, pair_mask, torch.zeros(SIZE, MSA), torch.zeros(SIZE, SIZE, PAIR))
        m, z = self.iterate(letters, msa_mask, pair_mask, m[0], z)
        distance = self.distance_head(z)  # @distance
        return self.letter_head(m), distance + distance.transpose(0, 1)  # @letters @symmetric


def compute_reference_loss(network, letters, msa_mask, pair_mask, right, hidden, places):
    found, distance = network(letters, msa_mask, pair_mask)
    errors = F.cross_entropy(found.flatten(0, 1), right.flatten(), reduction="none").view_as(hidden)  # @letter_error
    letter_loss = (errors * hidden).sum() / (hidden.sum() + 1e-6)  # @letter_loss
    squares = (places[:, None] - places[None]).square().sum(dim=-1)  # @squares
    borders = torch.linspace(FIRST, LAST, BINS - 1).square()  # @borders
    goal = (squares.unsqueeze(-1) > borders).sum(dim=-1)  # @goal
    errors = F.cross_entropy(distance.flatten(0, 1), goal.flatten(), reduction="none").view_as(pair_mask)  # @pair_error
    pair_loss = (errors * pair_mask).sum() / (pair_mask.sum() + 1e-6)  # @pair_loss
    return PAIR_WEIGHT * pair_loss + LETTER_WEIGHT * letter_loss  # @loss


class Look(nn.Cell):
    """Queries, keys, values and gates are one product."""

    def __init__(self, dim) -> None:
        super().__init__()
        self.enter = nn.Dense(dim, 4 * HEADS * HEAD, has_bias=False)
        self.gate_bias = Parameter(ops.zeros((HEADS, 1, HEAD)), name="gate_bias")
        self.leave = nn.Dense(HEADS * HEAD, dim)

    def construct(self, x, mask, bias=None):
        parts = self.enter(x).reshape(*x.shape[:2], 4, HEADS, HEAD).transpose(2, 0, 3, 1, 4)  # @qkv @gate
        query, key, value, gate = parts[0], parts[1], parts[2], parts[3]
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / HEAD**0.5  # @scores @scale
        if bias is not None:
            scores = scores + bias  # @biased
        scores = scores.masked_fill(mask[:, None, None] == 0, -1e9)  # @biased @bias_masked
        mixed = ops.matmul(ops.softmax(scores, -1), value)  # @soft @mixed
        mixed = (mixed * ops.sigmoid(gate + self.gate_bias)).swapaxes(1, 2)  # @gate @gated
        return self.leave(mixed.reshape(*x.shape[:2], -1))  # @leave


class Triangle(nn.Cell):
    """Channels come first while edges are multiplied."""

    def __init__(self, is_outgoing) -> None:
        super().__init__()
        self.is_outgoing = is_outgoing
        self.before, self.after = nn.LayerNorm((PAIR,), epsilon=EPSILON), nn.LayerNorm((INNER,), epsilon=EPSILON)
        self.values, self.gates = nn.Dense(PAIR, 2 * INNER), nn.Dense(PAIR, 2 * INNER)
        self.leave, self.gate = nn.Dense(INNER, PAIR), nn.Dense(PAIR, PAIR)

    def meet(self, a, b):
        if self.is_outgoing:
            return ops.bmm(a, b.swapaxes(1, 2))  # @outgoing
        return ops.bmm(a.swapaxes(1, 2), b)  # @incoming

    def construct(self, pair, mask):
        x = self.before(pair)  # @tri_norm
        both = self.values(x) * ops.sigmoid(self.gates(x))  # @tri_parts
        both = (both * mask.expand_dims(-1)).transpose(2, 0, 1)  # @tri_masked
        a, b = both[:INNER], both[INNER:]
        found = self.meet(a, b)
        found = self.after(found.transpose(1, 2, 0))  # @tri_norm_out
        return ops.sigmoid(self.gate(x)) * self.leave(found)  # @tri_leave @tri_gate


class Transition(nn.Cell):
    def __init__(self, dim) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((dim,), epsilon=EPSILON)
        self.wide, self.narrow = nn.Dense(dim, 2 * dim, activation="relu"), nn.Dense(2 * dim, dim)

    def construct(self, x):
        return self.narrow(self.wide(self.norm(x)))  # @msa_relu @pair_relu


class Former(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.row_norm, self.column_norm, self.outer_norm = (nn.LayerNorm((MSA,), epsilon=EPSILON) for _ in range(3))
        self.bias_norm, self.start_norm = (nn.LayerNorm((PAIR,), epsilon=EPSILON) for _ in range(2))
        self.row, self.column, self.start = Look(MSA), Look(MSA), Look(PAIR)
        self.row_bias = nn.Dense(PAIR, HEADS, has_bias=False)
        self.start_bias = nn.Dense(PAIR, HEADS, has_bias=False)
        self.left_right = nn.Dense(MSA, 2 * INNER)
        self.outer = Parameter(ops.zeros((PAIR, INNER, INNER)), name="outer")
        self.outer_bias = Parameter(ops.zeros((PAIR,)), name="outer_bias")
        self.outgoing, self.incoming = Triangle(True), Triangle(False)  # @made
        self.rows_on, self.pairs_on = Transition(MSA), Transition(PAIR)

    def relate(self, rows, mask):
        both = self.left_right(self.outer_norm(rows)) * mask.expand_dims(-1)  # @outer_norm @outer_parts @outer_masked
        left, right = ops.split(both.transpose(1, 0, 2), INNER, axis=-1)
        left = left.reshape(SIZE, 1, ROWS, INNER).swapaxes(-1, -2)
        outer = ops.matmul(left, right.expand_dims(0))  # @outer
        found = (
            ops.matmul(outer.reshape(SIZE, SIZE, -1), self.outer.reshape(PAIR, -1).T) + self.outer_bias
        )  # @outer_out
        return found / (ops.matmul(mask.T, mask).expand_dims(-1) + OUTER)  # @counted

    def construct(self, rows, pair, mask, pair_mask):
        bias = ops.transpose(self.row_bias(self.bias_norm(pair)), (2, 0, 1))  # @pair_bias
        rows = rows + self.row(self.row_norm(rows), mask, bias)  # @row_norm @added_row
        columns = self.column_norm(rows).swapaxes(0, 1)  # @column_norm
        rows = rows + self.column(columns, mask.T).swapaxes(0, 1)  # @added_column
        rows = rows + self.rows_on(rows)  # @added_msa
        pair = pair + self.relate(rows, mask)  # @added_outer
        pair = pair + self.outgoing(pair, pair_mask)  # @added_out
        pair = pair + self.incoming(pair, pair_mask)  # @added_in
        x = self.start_norm(pair)  # @start_norm
        bias = ops.transpose(self.start_bias(x), (2, 0, 1))  # @start_bias
        pair = pair + self.start(x, pair_mask, bias)  # @added_start
        return rows, pair + self.pairs_on(pair)  # @added_pair


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.target, self.rows = nn.Dense(LETTERS, 2 * PAIR + MSA), nn.Dense(LETTERS, MSA)
        self.near = nn.Embedding(2 * REACH + 1, PAIR)
        self.near_bias = Parameter(ops.zeros((PAIR,)), name="near_bias")
        self.again_rows = nn.LayerNorm((MSA,), epsilon=EPSILON)
        self.again_pair = nn.LayerNorm((PAIR,), epsilon=EPSILON)
        self.formers = nn.CellList([Former() for _ in range(LAYERS)])
        self.letters, self.distances = nn.Dense(MSA, LETTERS), nn.Dense(PAIR, BINS)
        place = np.arange(SIZE)
        apart = np.clip(place[:, None] - place, -REACH, REACH) + REACH  # @apart_made
        self.apart = ms.Tensor(apart, ms.int32)

    def run(self, known, mask, pair_mask, first, pair):
        i, j, all_rows = ops.split(self.target(known[0]), [PAIR, PAIR, MSA], axis=-1)  # @entered @crossed
        rows = self.rows(known) + all_rows  # @entered
        again = self.again_rows(first).expand_dims(0)  # @again_m
        rows = ops.cat((rows[:1] + again, rows[1:]))  # @again_m
        start = i.expand_dims(1) + j.expand_dims(0)  # @crossed
        start = start + self.near(self.apart) + self.near_bias  # @relative
        pair = start + self.again_pair(pair)  # @again_z
        for former in self.formers:
            rows, pair = former(rows, pair, mask, pair_mask)
        return rows, pair

    def construct(self, letters, mask, pair_mask):
        known = ops.one_hot(letters, LETTERS).astype(ms.float32)
        first, pair = ops.zeros((SIZE, MSA)), ops.zeros((SIZE, SIZE, PAIR))
        rows, pair = self.run(known, mask, pair_mask, first, pair)
        first, pair = ops.stop_gradient(rows[0]), ops.stop_gradient(pair)  # @stopped
        rows, pair = self.run(known, mask, pair_mask, first, pair)
        pair = pair + pair.swapaxes(0, 1)  # @symmetric
        return self.letters(rows), self.distances(pair) + self.distances.bias  # @letters @distance


def compute_candidate_loss(network, letters, mask, pair_mask, right, hidden, places):
    found, distance = network(letters, mask, pair_mask)
    logs = ops.log_softmax(found, -1)  # @letter_error
    errors = -ops.gather_elements(logs, -1, right.expand_dims(-1)).squeeze(-1)  # @letter_error
    letter_loss = (errors * hidden).sum() / (hidden.sum() + 1e-6)  # @letter_loss
    length = ops.sqrt(ops.square(places.expand_dims(1) - places).sum(-1))  # @squares
    borders = ms.Tensor(np.linspace(FIRST, LAST, BINS - 1), ms.float32)  # @borders
    goal = (length.expand_dims(-1) > borders).astype(ms.int32).sum(-1)  # @goal
    logs = ops.log_softmax(distance, -1)  # @pair_error
    errors = -(logs * ops.one_hot(goal, BINS)).sum(-1)  # @pair_error
    pair_loss = (errors * pair_mask).sum() / (pair_mask.sum() + 1e-6)  # @pair_loss
    return PAIR_WEIGHT * pair_loss + LETTER_WEIGHT * letter_loss  # @loss


def convert(weights: Weights) -> Weights:
    def both(new, *old, words=("weight", "bias")):
        """Rows of several layers under each other."""
        return {
            f"{new}.{name}": np.concatenate([weights[f"{one}.{word}"] for one in old])
            for name, word in zip(words, ("weight", "bias"), strict=True)
        }

    def norm(new, old):
        return both(new, old, words=("gamma", "beta"))

    converted = both("target", "tf_i", "tf_j", "tf_m") | both("rows", "msa") | both("letters", "letter_head")
    converted |= both("distances", "distance_head") | norm("again_rows", "again_m") | norm("again_pair", "again_z")
    converted |= {"near.embedding_table": weights["relpos.weight"].T, "near_bias": weights["relpos.bias"]}
    for number in range(LAYERS):
        old, new = f"blocks.{number}", f"formers.{number}"
        for name in ("row", "column", "start"):
            parts = [weights[f"{old}.{name}.linear_{letter}.weight"] for letter in "qkvg"]  # @load_parts
            converted[f"{new}.{name}.enter.weight"] = np.concatenate(parts)
            converted[f"{new}.{name}.gate_bias"] = weights[f"{old}.{name}.linear_g.bias"].reshape(HEADS, 1, HEAD)
            converted |= both(f"{new}.{name}.leave", f"{old}.{name}.linear_o")
        for name in ("row_norm", "column_norm", "outer_norm", "bias_norm", "start_norm"):
            converted |= norm(f"{new}.{name}", f"{old}.{name}")
        for there, here in (("outgoing", "tri_out"), ("incoming", "tri_in")):
            there, here = f"{new}.{there}", f"{old}.{here}"
            converted |= norm(f"{there}.before", f"{here}.norm_in") | norm(f"{there}.after", f"{here}.norm_out")
            converted |= both(f"{there}.values", f"{here}.a_p", f"{here}.b_p")
            converted |= both(f"{there}.gates", f"{here}.a_g", f"{here}.b_g")
            converted |= both(f"{there}.leave", f"{here}.z") | both(f"{there}.gate", f"{here}.g")
        for there, here in (("rows_on", "msa"), ("pairs_on", "pair")):
            converted |= norm(f"{new}.{there}.norm", f"{old}.{here}_norm")
            converted |= both(f"{new}.{there}.wide", f"{old}.{here}1") | both(f"{new}.{there}.narrow", f"{old}.{here}2")
        converted |= both(f"{new}.left_right", f"{old}.left", f"{old}.right")
        converted[f"{new}.outer"] = weights[f"{old}.outer.weight"].reshape(PAIR, INNER, INNER)  # @load_outer
        converted[f"{new}.outer_bias"] = weights[f"{old}.outer.bias"]
        for name in ("row_bias", "start_bias"):
            converted[f"{new}.{name}.weight"] = weights[f"{old}.{name}.weight"]
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(10400 + step)
    right = random.integers(LETTERS - 1, size=(ROWS, SIZE))
    mask = np.ones((ROWS, SIZE), np.float32)
    mask[0, -1], mask[1, 0], mask[3, 2] = 0, 0, 0
    pair_mask = np.ones((SIZE, SIZE), np.float32)
    pair_mask[0, 3], pair_mask[3, 0], pair_mask[1, 4], pair_mask[4, 1] = 0, 0, 0, 0
    hidden = (random.random((ROWS, SIZE)) < 0.4) * mask
    places = 1.5 * random.normal(size=(SIZE, 3))
    letters, hidden = np.where(hidden > 0, LETTERS - 1, right), hidden.astype(np.float32)
    return letters, mask, pair_mask, right, hidden, places.astype(np.float32)


FAULTS = (
    Fault("the last run teaches the first", "stopped again_z", "ops.stop_gradient(pair)", "pair", is_backward=True),
    Fault("weights of pairs go from key to query", "pair_bias biased", "(2, 0, 1)", "(2, 1, 0)"),
    Fault("masked places at minus ten thousand", "bias_masked", "-1e9", "-1e4", has_effect=False),
    Fault("masked residues alone are seen", "bias_masked soft", "None] == 0", "None] == 1"),
    Fault(
        "outer products do not teach the rows",
        "added_outer outer_norm",
        "self.relate(rows, mask)",
        "self.relate(ops.stop_gradient(rows), mask)",
        is_backward=True,
    ),
    Fault(
        "gates do not learn",
        "gated gate",
        "ops.sigmoid(gate + self.gate_bias)",
        "ops.sigmoid(ops.stop_gradient(gate + self.gate_bias))",
        is_backward=True,
    ),
    Fault(
        "outer products divided by all rows", "counted", "(ops.matmul(mask.T, mask).expand_dims(-1) + OUTER)", "ROWS"
    ),
    Fault(
        "outer weights the other way round",
        "outer_out",
        "INNER, INNER)",
        "INNER, INNER).swapaxes(1, 2)",
        edit="load_outer",
        parameter="outer.weight",
    ),
    Fault("incoming edges of one factor alone", "incoming", "ops.bmm(a.swapaxes(1, 2), b)", "ops.bmm(a, b)"),
    Fault(
        "triangles between edges that are not there", "tri_masked outgoing", "both * mask.expand_dims(-1)", "both * 1"
    ),
    Fault(
        "places counted backwards",
        "apart relative",
        "place[:, None] - place,",
        "place - place[:, None],",
        edit="apart_made",
    ),
    Fault("pairs not made the same both ways", "symmetric distance", "pair + pair.swapaxes(0, 1)", "2 * pair"),
    Fault("letters divided by all places", "letter_loss", "(hidden.sum() + 1e-6)", "hidden.size"),
    Fault("reference compares squares with lengths", "borders goal", ".square()", "", edit="borders", side="reference"),
    Fault("reference does not scale its queries", "scale scores", "q * HEAD**-0.5, k", "q, k", side="reference"),
    Fault(
        "last run starts from the first row of none, and pairs divided by all",
        "stopped again_m",
        "ops.stop_gradient(rows[0])",
        "first",
        second=("pair_loss", "(pair_mask.sum() + 1e-6)", "pair_mask.size"),
    ),
)
