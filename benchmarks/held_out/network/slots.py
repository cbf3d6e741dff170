"""Slots that compete for the pixels of frames and paint them; slots come last in the port, which has its own GRU."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import mint, nn, ops

from held_out.fault import Fault
from held_out.pair import rename
from held_out.weight import Weights

HIGH, WIDE, WIDTH, HIDDEN, SLOTS, ROUNDS, BATCH = 4, 5, 8, 12, 3, 3, 2
PIXELS, FEW, KEPT = HIGH * WIDE, 1e-2, 0.5


def make_grid():
    """How far each pixel is from the four sides."""
    across, down = np.meshgrid(np.linspace(0, 1, WIDE), np.linspace(0, 1, HIGH))
    return np.stack([across, down, 1 - across, 1 - down], axis=-1).astype(np.float32)


class Place(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, WIDTH)
        self.register_buffer("grid", torch.from_numpy(make_grid()), persistent=False)

    def forward(self, x):
        return x + self.dense(self.grid).permute(2, 0, 1)  # @place @placed


class SlotAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.middle, self.spread = (torch.nn.Parameter(torch.zeros(1, SLOTS, WIDTH)) for _ in range(2))
        self.norm_in, self.norm_slots, self.norm_mlp = (torch.nn.LayerNorm(WIDTH) for _ in range(3))
        self.to_q, self.to_k, self.to_v = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.gru = torch.nn.GRUCell(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH))
        self.register_buffer("before", torch.zeros(BATCH, SLOTS, WIDTH), persistent=False)

    def iterate(self, slots, k, v):
        q = self.to_q(self.norm_slots(slots)) * WIDTH**-0.5  # @norm_slots @query @scaled
        chance = torch.einsum("bpd,bsd->bps", k, q).softmax(dim=-1)  # @score @chance
        part = chance + FEW  # @few
        part = part / part.sum(dim=1, keepdim=True)  # @part
        update = torch.einsum("bps,bpd->bsd", part, v)  # @update
        slots = self.gru(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)  # @in @state @gates @new @hidden
        return slots + self.mlp(self.norm_mlp(slots)), chance  # @norm_mlp @mlp @added

    def forward(self, x, noise):
        x = self.norm_in(x)  # @norm_in
        k, v = self.to_k(x), self.to_v(x)  # @key @value
        start = self.middle + self.spread.exp() * noise  # @start
        slots = start + KEPT * self.before  # @carried
        for _ in range(ROUNDS - 1):
            slots, _ = self.iterate(slots, k, v)
        slots = slots.detach() + start - start.detach()  # @through
        slots, chance = self.iterate(slots, k, v)
        self.before = slots.detach()  # @store
        return slots, chance


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, WIDTH, 3, padding=1)
        self.place, self.paint_place = Place(), Place()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)
        self.attention = SlotAttention()
        self.paint1 = torch.nn.ConvTranspose2d(WIDTH, WIDTH, 3, padding=1)
        self.paint2 = torch.nn.Conv2d(WIDTH, 4, 3, padding=1)

    def forward(self, image, noise):
        x = self.place(F.relu(self.conv(image)))  # @conv
        x = self.norm(x.flatten(2).transpose(1, 2))  # @flat @norm
        x = self.down(F.relu(self.up(x)))  # @mlp_in
        slots, chance = self.attention(x, noise)
        canvas = slots.reshape(-1, WIDTH, 1, 1).expand(-1, -1, HIGH, WIDE)  # @canvas
        h = F.relu(self.paint1(self.paint_place(canvas)))  # @paint1
        h = self.paint2(h).unflatten(0, (BATCH, SLOTS))  # @colour @alpha
        colour, alpha = h.split([3, 1], dim=2)  # @colour @alpha
        masks = alpha.softmax(dim=1)  # @masks
        return (colour * masks).sum(dim=1), masks.squeeze(2), chance  # @blend


def compute_reference_loss(network, image, noise, step):
    found, masks, chance = network(image, noise)
    loss = F.mse_loss(found, image)  # @error
    seen = chance.transpose(1, 2).detach()  # @seen
    agree = F.kl_div(torch.log(masks.flatten(2) + 1e-6), seen, reduction="sum") / (BATCH * PIXELS)  # @agree @away
    unsure = torch.special.entr(chance).sum(dim=-1).mean()  # @unsure
    return loss + 0.2 * agree + 0.1 * (step + 1) * unsure  # @loss


class Gate(nn.Cell):
    """The GRU step as its formula; states have any axes before the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.from_input, self.from_state = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, 3 * WIDTH)

    def construct(self, x, hidden):
        in_r, in_z, in_n = mint.chunk(self.from_input(x), 3, dim=-1)  # @in @in_parts
        st_r, st_z, st_n = mint.chunk(self.from_state(hidden), 3, dim=-1)  # @state @state_parts
        reset, keep = ops.sigmoid(in_r + st_r), ops.sigmoid(in_z + st_z)  # @gates
        new = ops.tanh(in_n + reset * st_n)  # @new
        return keep * hidden + (1 - keep) * new  # @hidden


class Compete(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.middle = ms.Parameter(ops.zeros((SLOTS, WIDTH)), name="middle")
        self.spread = ms.Parameter(ops.zeros((SLOTS, WIDTH)), name="spread")
        self.norm_in = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.norm_slots = nn.LayerNorm((WIDTH,), epsilon=1e-5)  # @slots_made
        self.norm_mlp = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.query = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.key_value = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)
        self.gate = Gate()
        self.up, self.down = nn.Dense(WIDTH, HIDDEN, activation="relu"), nn.Dense(HIDDEN, WIDTH)
        self.before = ops.zeros((BATCH, SLOTS, WIDTH))

    def construct(self, x, noise):
        k, v = mint.chunk(self.key_value(self.norm_in(x)), 2, dim=-1)  # @norm_in @key @value @halves
        k = k / WIDTH**0.5  # @scaled
        start = self.middle + ops.exp(self.spread) * noise  # @start
        slots = start + KEPT * self.before  # @carried
        for number in range(ROUNDS):
            if number == ROUNDS - 1:
                slots = ops.stop_gradient(slots) + (start - ops.stop_gradient(start))  # @through
            q = self.query(self.norm_slots(slots))  # @norm_slots @query
            chance = ops.softmax(ops.bmm(q, k.swapaxes(1, 2)), 1)  # @score @chance
            total = chance.sum(-1, keepdims=True) + PIXELS * FEW  # @few @part
            update = ops.bmm((chance + FEW) / total, v)  # @few @part @update
            slots = self.gate(update, slots)  # @called
            slots = slots + self.down(self.up(self.norm_mlp(slots)))  # @norm_mlp @mlp @added
        self.before = ops.stop_gradient(slots)  # @store
        return slots, chance


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, pad_mode="same", has_bias=True)
        self.place, self.paint_place = nn.Dense(4, WIDTH), nn.Dense(4, WIDTH)
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.mlp = nn.SequentialCell(nn.Dense(WIDTH, HIDDEN), nn.ReLU(), nn.Dense(HIDDEN, WIDTH))
        self.attention = Compete()
        self.paint1 = nn.Conv2d(WIDTH, WIDTH, 3, pad_mode="pad", padding=1, has_bias=True)
        self.colour = nn.Conv2d(WIDTH, 3, 3, pad_mode="pad", padding=1, has_bias=True)
        self.alpha = nn.Conv2d(WIDTH, 1, 3, pad_mode="pad", padding=1, has_bias=True)
        self.grid = ms.Tensor(make_grid().reshape(1, PIXELS, 4))  # @grid_made

    def construct(self, image, noise):
        h = ops.relu(self.conv(image)).reshape(BATCH, WIDTH, PIXELS).transpose(0, 2, 1)  # @conv @flat
        h = self.norm(h + self.place(self.grid))  # @place @placed @norm
        slots, chance = self.attention(self.mlp(h), noise)  # @mlp_in
        canvas = slots.reshape(BATCH * SLOTS, 1, WIDTH)  # @canvas
        canvas = canvas + self.paint_place(self.grid)  # @place @placed
        canvas = canvas.swapaxes(1, 2).reshape(-1, WIDTH, HIGH, WIDE)  # @turned
        h = ops.relu(self.paint1(canvas))  # @paint1
        colour = self.colour(h).reshape(BATCH, SLOTS, 3, PIXELS)  # @colour
        alpha = self.alpha(h).reshape(BATCH, SLOTS, 1, PIXELS)  # @alpha
        masks = ops.softmax(alpha, 1)  # @masks
        return ops.sum(colour * masks, 1), masks.reshape(BATCH, SLOTS, PIXELS), chance  # @blend


def compute_candidate_loss(network, image, noise, step):
    found, masks, chance = network(image, noise)
    loss = ops.square(found - image.reshape(BATCH, 3, PIXELS)).mean()  # @error
    seen = ops.stop_gradient(chance)  # @seen
    agree = (seen * (ops.log(seen) - ops.log(masks + 1e-6))).sum((1, 2)) / PIXELS  # @agree @away
    unsure = -(chance * ops.log(chance)).sum(1).mean()  # @unsure
    return loss + 0.2 * agree.mean() + (0.1 + 0.1 * step) * unsure  # @loss


def convert(weights: Weights) -> Weights:
    table = {"to_q": "query", "place.dense": "place", "mlp.0": "up", "mlp.2": "down"}
    converted = {}
    for name, array in rename(weights, norms=("norm", "norm_in", "norm_slots", "norm_mlp")).items():
        if name.startswith(("up", "down")):
            name = name.replace("up", "mlp.0").replace("down", "mlp.2")
        else:
            for old, new in table.items():
                name = name.replace(old, new)
        if name.endswith(("middle", "spread")):
            array = array[0]
        converted[name] = array
    for name in [name for name in converted if name.endswith(("grid", "before"))]:
        del converted[name]
    kernel = converted["paint1.weight"]
    converted["paint1.weight"] = kernel.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]  # @load_paint
    for word in ("weight", "bias"):
        both = converted.pop(f"paint2.{word}")
        converted[f"colour.{word}"], converted[f"alpha.{word}"] = both[:3], both[3:]
        converted[f"attention.gate.from_input.{word}"] = converted.pop(f"attention.gru.{word}_ih")
        converted[f"attention.gate.from_state.{word}"] = converted.pop(f"attention.gru.{word}_hh")
    parts = [converted.pop(f"attention.to_{word}.weight") for word in ("k", "v")]
    return converted | {"attention.key_value.weight": np.concatenate(parts)}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(6100 + step)
    image = random.normal(size=(BATCH, 3, HIGH, WIDE))
    image[:, :, :2] += 1.5
    return image.astype(np.float32), random.normal(size=(BATCH, SLOTS, WIDTH)).astype(np.float32)


FAULTS = (
    Fault("softmax over the pixels", "chance", "k.swapaxes(1, 2)), 1)", "k.swapaxes(1, 2)), 2)"),
    Fault("not divided by the sum over the pixels", "part update", "(chance + FEW) / total", "(chance + FEW)"),
    Fault("sum forgets the small number", "few part", " + PIXELS * FEW", " + FEW"),
    Fault("keys not scaled", "scaled score", "k = k / WIDTH**0.5", "k = k * 1"),
    Fault("keys for values", "halves key value scaled update", "k, v = mint", "v, k = mint"),
    Fault("slots not added again", "added", "slots = slots + self.down", "slots = self.down"),
    Fault("reset gate on the state itself", "new", "reset * st_n", "reset * hidden"),
    Fault(
        "gate keeps the other part", "hidden", "keep * hidden + (1 - keep) * new", "keep * new + (1 - keep) * hidden"
    ),
    Fault("epsilon of the norm of slots", "norm_slots", "epsilon=1e-5", "epsilon=1e-1", edit="slots_made"),
    Fault(
        "start passes no gradient",
        "through start norm_slots state hidden",
        "ops.stop_gradient(slots) + (start - ops.stop_gradient(start))",
        "ops.stop_gradient(slots)",
        is_backward=True,
    ),
    Fault(
        "earlier rounds not detached",
        "through added",
        "ops.stop_gradient(slots) + (start - ops.stop_gradient(start))",
        "slots",
        is_backward=True,
    ),
    Fault("what was seen not detached", "seen agree chance", "ops.stop_gradient(chance)", "chance", is_backward=True),
    Fault("grid of columns before rows", "place", "make_grid()", "make_grid()[..., [1, 0, 3, 2]]", edit="grid_made"),
    Fault(
        "pixels turned",
        "turned paint1",
        "canvas.swapaxes(1, 2).reshape(-1, WIDTH, HIGH, WIDE)",
        "canvas.reshape(-1, WIDTH, HIGH, WIDE)",
    ),
    Fault("masks over the pixels", "masks", "ops.softmax(alpha, 1)", "ops.softmax(alpha, -1)"),
    Fault("slots not kept for the next frame", "carried", "self.before =", "_ =", edit="store", steps=2, first_step=1),
    Fault(
        "kernel of the first painter not turned",
        "paint1",
        "[:, :, ::-1, ::-1]",
        "",
        edit="load_paint",
        parameter="paint1",
    ),
    Fault("reference is unsure by sums", "unsure", ".sum(dim=-1).mean()", ".mean()", side="reference"),
    Fault(
        "spread not exponentiated, and the mean of agreement twice",
        "start",
        "ops.exp(self.spread) * noise",
        "self.spread * noise",
        second=("loss", "agree.mean()", "agree.mean() / BATCH"),
    ),
)
