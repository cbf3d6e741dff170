"""Energies and dipoles of molecules by scalars and vectors that turn along: sums over edges, or all pairs of atoms."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Tensor, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

ELEMENTS, WIDTH, WAVES, LAYERS, CUTOFF, EPSILON = 5, 6, 5, 2, 2.5, 1e-8
SIZES, DELTA, DIPOLE = (5, 3, 6), 0.5, 0.3
SHIFT, SPREAD = -0.4, 1.7
ALONE = np.array([0.0, -0.5, -3.8, -5.4, -7.5], np.float32)


class BesselBasis(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequency", math.pi * torch.arange(1, WAVES + 1).float() / CUTOFF, persistent=False)

    def forward(self, distance):
        return torch.sin(distance[:, None] * self.frequency) / distance[:, None]  # @phase @waves


class CosineCutoff(torch.nn.Module):
    def forward(self, distance):
        smooth = 0.5 * (torch.cos(math.pi * distance / CUTOFF) + 1.0)  # @smooth
        return smooth * (distance < CUTOFF).float()  # @smooth @near


class PaiNNMessage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scalar_net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, 3 * WIDTH)
        )
        self.filter_net = torch.nn.Linear(WAVES, 3 * WIDTH)

    def forward(self, scalar, vector, edge_index, direction, basis, cutoff):
        i, j = edge_index
        filters = self.filter_net(basis) * cutoff[:, None]  # @filters @cut
        phi = self.scalar_net(scalar)  # @told
        gate_s, gate_v, gate_d = (phi[j] * filters).chunk(3, dim=-1)  # @messages @parts
        moved = vector[j] * gate_v[:, None, :] + direction[:, :, None] * gate_d[:, None, :]  # @moved @along
        scalar = scalar.index_add(0, i, gate_s)  # @gathered @added
        return scalar, vector.index_add(0, i, moved)  # @gathered_vectors @added_vectors


class PaiNNUpdate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.mix = torch.nn.Sequential(
            torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, 3 * WIDTH)
        )

    def forward(self, scalar, vector):
        u, v = self.u(vector), self.v(vector)  # @turned @turned_u @turned_v
        length = torch.sqrt(v.pow(2).sum(dim=1) + EPSILON)  # @length
        a_ss, a_sv, a_vv = self.mix(torch.cat([scalar, length], dim=-1)).chunk(3, dim=-1)  # @beside @mixed @shares
        scalar = scalar + a_ss + a_sv * (u * v).sum(dim=1)  # @product @updated
        return scalar, vector + a_vv[:, None, :] * u  # @updated_vectors


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(ELEMENTS, WIDTH, padding_idx=0)
        self.basis, self.cutoff = BesselBasis(), CosineCutoff()
        self.messages = torch.nn.ModuleList([PaiNNMessage() for _ in range(LAYERS)])
        self.updates = torch.nn.ModuleList([PaiNNUpdate() for _ in range(LAYERS)])
        self.energy = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, 1))
        self.charge, self.arrow = torch.nn.Linear(WIDTH, 1), torch.nn.Linear(WIDTH, 1, bias=False)
        self.register_buffer("atomref", torch.from_numpy(ALONE), persistent=False)

    def forward(self, numbers, positions, molecule, edge_index):
        offset = positions[edge_index[1]] - positions[edge_index[0]]  # @offset
        distance = offset.norm(dim=1)  # @distance
        direction = offset / distance[:, None]  # @direction
        basis, cutoff = self.basis(distance), self.cutoff(distance)
        scalar = self.embedding(numbers)  # @embedded
        vector = scalar.new_zeros(len(numbers), 3, WIDTH)
        for message, update in zip(self.messages, self.updates, strict=True):
            scalar, vector = message(scalar, vector, edge_index, direction, basis, cutoff)
            scalar, vector = update(scalar, vector)
        each = self.energy(scalar).squeeze(1) * SPREAD + SHIFT  # @each @scaled @shifted
        each = each + self.atomref[numbers]  # @alone
        energy = torch.zeros(len(SIZES)).index_add(0, molecule, each)  # @summed
        counts = torch.bincount(molecule).float()
        middle = torch.zeros(len(SIZES), 3).index_add(0, molecule, positions) / counts[:, None]  # @middle
        charge = self.charge(scalar)  # @charge
        pull = charge * (positions - middle[molecule]) + self.arrow(vector).squeeze(2)  # @centred @arrow @pull
        dipole = torch.zeros(len(SIZES), 3).index_add(0, molecule, pull)  # @dipole
        return energy, dipole, counts


def compute_reference_loss(network, numbers, positions, molecule, edge_index, energy, dipole):
    found, pull, counts = network(numbers, positions, molecule, edge_index)
    loss = F.huber_loss(found / counts, energy / counts, delta=DELTA)  # @by_atom @huber
    return loss + DIPOLE * (pull - dipole).pow(2).sum(dim=1).mean()  # @square @dipole_loss @loss


class Mix(nn.Cell):
    """Two layers, the second of which tells three things of the width; all of them in one table."""

    def __init__(self, enter: int) -> None:
        super().__init__()
        self.one, self.two = nn.Dense(enter, WIDTH), nn.Dense(WIDTH, 3 * WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        return self.two(ops.silu(self.one(x)))  # @told @mixed


class Layer(nn.Cell):
    """Vectors have their directions first."""

    def __init__(self) -> None:
        super().__init__()
        self.tell, self.mix = Mix(WIDTH), Mix(2 * WIDTH)
        self.turn = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)

    def listen(self, s: Tensor, v: Tensor, filters: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
        """All atoms hear all atoms: those that are far away have no filter."""
        told = self.tell(s).expand_dims(0)
        heard = told * filters  # @messages
        of_scalar, of_vector, of_way = ops.split(heard, WIDTH, -1)  # @parts
        s = s + of_scalar.sum(1)  # @gathered @added
        old = (of_vector.expand_dims(0) * v.expand_dims(1)).sum(2)  # @moved @gathered_vectors
        new = (of_way.expand_dims(0) * way.expand_dims(-1)).sum(2)  # @along @gathered_vectors
        return s, v + (old + new)  # @added_vectors

    def update(self, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        both = self.turn(v)  # @turned
        left, right = both[..., :WIDTH], both[..., WIDTH:]  # @turned_u @turned_v
        length = ops.sqrt(ops.square(right).sum(0) + EPSILON)  # @length
        shares = self.mix(ops.cat((s, length), -1)).reshape(-1, 3, WIDTH)  # @beside
        keep, product, stretch = shares[:, 0], shares[:, 1], shares[:, 2]  # @shares
        inner = (left * right).sum(0)  # @product
        s = s + (keep + product * inner)  # @updated
        return s, v + stretch * left  # @updated_vectors

    def construct(self, s: Tensor, v: Tensor, filters: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
        return self.update(*self.listen(s, v, filters, way))


class Candidate(nn.Cell):
    """One product makes the filters of all layers; atoms are summed by a table of who is in which molecule."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = nn.Embedding(ELEMENTS, WIDTH)
        self.filters = nn.Dense(WAVES, LAYERS * 3 * WIDTH)
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.hidden, self.energy = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, 1)
        self.charge, self.arrow = nn.Dense(WIDTH, 1), nn.Dense(WIDTH, 1, has_bias=False)
        self.alone = Tensor(ALONE)
        self.numbers = ops.arange(1, WAVES + 1).astype(ms.float32) * (math.pi / CUTOFF)  # @numbers_made
        self.self_pair = ops.eye(sum(SIZES))

    def look(self, places: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
        """How each atom sees each other one: the direction, and the filters of all layers."""
        offset = places.T.expand_dims(1) - places.T.expand_dims(2)  # @offset
        distance = ops.sqrt(ops.square(offset).sum(0) + self.self_pair)  # @distance
        together = ops.matmul(member.T, member) - self.self_pair  # @together
        near = together * (distance < CUTOFF).astype(ms.float32)  # @near
        smooth = (1 + ops.cos(distance * (math.pi / CUTOFF))) / 2 * near  # @smooth
        waves = ops.sin(distance.expand_dims(-1) * self.numbers) / distance.expand_dims(-1)  # @phase @waves
        filters = self.filters(waves)  # @filters
        filters = filters * smooth.expand_dims(-1)  # @cut
        return offset / distance, filters  # @direction

    def construct(self, kinds: Tensor, places: Tensor, member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        way, filters = self.look(places, member)
        filters = ops.split(filters, 3 * WIDTH, -1)
        s = self.elements(kinds)  # @embedded
        v = ops.zeros((3, *s.shape), ms.float32)
        for number, layer in enumerate(self.layers):
            s, v = layer(s, v, filters[number], way)  # @layer
        each = self.energy(ops.silu(self.hidden(s))).squeeze(1)  # @each
        each = SHIFT + SPREAD * each  # @scaled @shifted
        energy = ops.matmul(member, each + ops.gather(self.alone, kinds, 0))  # @alone @summed
        counts = member.sum(1)
        middle = ops.matmul(member, places) / counts.expand_dims(1)  # @middle
        centred = places - ops.matmul(member.T, middle)  # @centred
        pull = self.charge(s) * centred + self.arrow(v).squeeze(2).T  # @charge @arrow @pull
        return energy, ops.matmul(member, pull), counts  # @dipole


def compute_candidate_loss(network, kinds, places, molecule, pairs, energy, dipole):
    """Pairs are found again: an atom is near if it is in the same molecule and not too far."""
    member = (ops.arange(len(SIZES)).expand_dims(1) == molecule.expand_dims(0)).astype(ms.float32)  # @member
    found, pull, counts = network(kinds, places, member)
    miss = ops.abs((found - energy) / counts)  # @by_atom
    huber = ops.where(miss < DELTA, 0.5 * miss * miss, DELTA * (miss - 0.5 * DELTA)).mean()  # @huber
    return huber + DIPOLE * ops.square(pull - dipole).sum(1).mean()  # @square @dipole_loss @loss


def convert(weights: Weights) -> Weights:
    converted = {"elements.embedding_table": weights["embedding.weight"], "arrow.weight": weights["arrow.weight"]}
    for new, old in {"hidden": "energy.0", "energy": "energy.2", "charge": "charge"}.items():
        converted |= {f"{new}.{word}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    for word in ("weight", "bias"):
        parts = [weights[f"messages.{number}.filter_net.{word}"] for number in range(LAYERS)]
        converted[f"filters.{word}"] = np.concatenate(parts)
        for number in range(LAYERS):
            for place, layer in ((0, "one"), (2, "two")):
                converted[f"layers.{number}.tell.{layer}.{word}"] = weights[
                    f"messages.{number}.scalar_net.{place}.{word}"
                ]
                converted[f"layers.{number}.mix.{layer}.{word}"] = weights[f"updates.{number}.mix.{place}.{word}"]
    for number in range(LAYERS):
        turns = [weights[f"updates.{number}.{name}.weight"] for name in ("u", "v")]  # @load
        converted[f"layers.{number}.turn.weight"] = np.concatenate(turns)
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8900 + step)
    molecule = np.repeat(np.arange(len(SIZES)), SIZES)
    positions = random.uniform(-1, 1, size=(len(molecule), 3)) * 1.3
    for turn in range(len(molecule)):  # atoms do not come too close
        while turn and np.linalg.norm(positions[:turn] - positions[turn], axis=1).min() < 0.6:
            positions[turn] = random.uniform(-1, 1, size=3) * 1.3
    positions = positions.astype(np.float32)
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    near = (distance < CUTOFF) & (molecule[:, None] == molecule) & ~np.eye(len(molecule), dtype=bool)
    numbers = random.integers(1, ELEMENTS, size=len(molecule))
    energy = np.bincount(molecule, ALONE[numbers] + random.normal(size=len(molecule)))
    dipole = random.normal(size=(len(SIZES), 3))
    return (
        numbers,
        positions,
        molecule,
        np.stack(np.nonzero(near)),
        *(one.astype(np.float32) for one in (energy, dipole)),
    )


FAULTS = (
    Fault(
        "direction from the other end",
        "offset",
        "places.T.expand_dims(1) - places.T.expand_dims(2)",
        "places.T.expand_dims(2) - places.T.expand_dims(1)",
    ),
    Fault(
        "atoms hear themselves",
        "together near",
        "ops.matmul(member.T, member) - self.self_pair",
        "ops.matmul(member.T, member)",
    ),
    Fault("molecules hear each other", "together near", "ops.matmul(member.T, member)", "1.0"),
    Fault(
        "waves counted from nothing",
        "phase waves",
        "ops.arange(1, WAVES + 1)",
        "ops.arange(WAVES)",
        edit="numbers_made",
    ),
    Fault("filters end suddenly", "smooth cut", "smooth.expand_dims(-1)", "near.expand_dims(-1)", edit="cut"),
    Fault(
        "directions take no gradient",
        "direction along",
        "offset / distance, filters",
        "ops.stop_gradient(offset / distance), filters",
        has_effect=False,
    ),
    Fault(
        "parts for vectors and directions exchanged",
        "parts moved along",
        "of_scalar, of_vector, of_way",
        "of_scalar, of_way, of_vector",
    ),
    Fault(
        "filters of the layers exchanged",
        "filters messages layer",
        "filters[number]",
        "filters[LAYERS - 1 - number]",
        edit="layer",
    ),
    Fault("vectors replaced", "added_vectors", "v + (old + new)", "old + new"),
    Fault(
        "two tables of vectors exchanged",
        "turned turned_u turned_v",
        '("u", "v")]',
        '("v", "u")]',
        edit="load",
        parameter="updates",
    ),
    Fault(
        "length passes no gradient",
        "length beside",
        "ops.cat((s, length), -1)",
        "ops.cat((s, ops.stop_gradient(length)), -1)",
        edit="beside",
        is_backward=True,
    ),
    Fault(
        "product trains one side",
        "product",
        "(left * right).sum(0)",
        "(left * ops.stop_gradient(right)).sum(0)",
        is_backward=True,
    ),
    Fault(
        "charges do not train the atoms",
        "charge",
        "self.charge(s)",
        "self.charge(ops.stop_gradient(s))",
        is_backward=True,
    ),
    Fault(
        "reference adds at the other end",
        "gathered",
        "index_add(0, i, gate_s)",
        "index_add(0, j, gate_s)",
        side="reference",
    ),
    Fault(
        "reference misses by molecules",
        "by_atom huber",
        "found / counts, energy / counts",
        "found, energy",
        side="reference",
    ),
    Fault(
        "energies of atoms that are alone forgotten, and places not centred",
        "alone summed",
        "each + ops.gather(self.alone, kinds, 0)",
        "each",
        second=("centred", "places - ops.matmul(member.T, middle)", "places * 1"),
    ),
)
