"""Speech from phones whose durations are given, with pitch and energy in buckets; trained by Adam in a warm-up."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

PHONES, WIDTH, HEADS, HIDDEN, MELS, BUCKETS, BATCH, TIME, FRAMES = 11, 12, 2, 16, 5, 5, 3, 6, 13
SIZE, NORM, BORDERS = WIDTH // HEADS, 1e-2, (-1.0, -0.5, 0.5, 1.0)
FACTOR, WARM, BETAS, EPSILON, LIMIT = 0.2, 4, (0.9, 0.98), 1e-2, 2.0


def get_mask_from_lengths(lengths, size):
    return torch.arange(size)[None] >= lengths[:, None]  # @padding


def get_sinusoid_encoding_table():
    angle = np.arange(FRAMES)[:, None] / np.power(10000, 2 * (np.arange(WIDTH) // 2) / WIDTH)
    angle[:, 0::2], angle[:, 1::2] = np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])
    return torch.FloatTensor(angle)


class FFTBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_qs, self.w_ks, self.w_vs = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.fc, self.norm1 = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH, eps=NORM)
        self.w_1, self.w_2 = torch.nn.Conv1d(WIDTH, HIDDEN, 3, padding=1), torch.nn.Conv1d(HIDDEN, WIDTH, 1)
        self.norm2 = torch.nn.LayerNorm(WIDTH, eps=NORM)

    def split_heads(self, x):
        return x.view(BATCH, -1, HEADS, SIZE).permute(2, 0, 1, 3).reshape(HEADS * BATCH, -1, SIZE)

    def forward(self, x, mask):
        q, k, v = (self.split_heads(layer(x)) for layer in (self.w_qs, self.w_ks, self.w_vs))  # @heads
        attn = torch.bmm(q, k.transpose(1, 2)) / SIZE**0.5  # @scores
        attn = attn.masked_fill(mask[:, None].repeat(HEADS, 1, 1), float("-inf"))  # @masked
        out = torch.bmm(attn.softmax(dim=2), v).view(HEADS, BATCH, -1, SIZE)  # @soft @mixed
        x = self.norm1(self.fc(out.permute(1, 2, 0, 3).flatten(2)) + x)  # @leave @added @layer_norm
        x = x.masked_fill(mask.unsqueeze(-1), 0)  # @cleared
        h = self.w_2(F.relu(self.w_1(x.transpose(1, 2)))).transpose(1, 2)  # @conv @relu @narrow
        return self.norm2(h + x).masked_fill(mask.unsqueeze(-1), 0)  # @added2 @layer_norm2 @cleared2


class VariancePredictor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH, eps=NORM), torch.nn.LayerNorm(WIDTH, eps=NORM)
        self.linear_layer = torch.nn.Linear(WIDTH, 1)

    def forward(self, x, mask):
        x = self.norm1(F.relu(self.conv1(x.transpose(1, 2))).transpose(1, 2))  # @look @look_relu @look_norm
        x = self.norm2(F.relu(self.conv2(x.transpose(1, 2))).transpose(1, 2))  # @look @look_relu @look_norm
        return self.linear_layer(x).squeeze(-1).masked_fill(mask, 0.0)  # @guess @guess_masked


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_word_emb = torch.nn.Embedding(PHONES, WIDTH)
        self.encoder, self.decoder = FFTBlock(), FFTBlock()
        self.duration_predictor, self.pitch_predictor = VariancePredictor(), VariancePredictor()
        self.energy_predictor = VariancePredictor()
        self.pitch_embedding = torch.nn.Embedding(BUCKETS, WIDTH)
        self.energy_embedding = torch.nn.Embedding(BUCKETS, WIDTH)
        self.mel_linear = torch.nn.Linear(WIDTH, MELS)
        self.post1, self.bn1 = torch.nn.Conv1d(MELS, HIDDEN, 3, padding=1, bias=False), torch.nn.BatchNorm1d(HIDDEN)
        self.post2, self.bn2 = torch.nn.Conv1d(HIDDEN, MELS, 3, padding=1, bias=False), torch.nn.BatchNorm1d(MELS)
        self.register_buffer("position", get_sinusoid_encoding_table(), persistent=False)
        self.register_buffer("bins", torch.tensor(BORDERS), persistent=False)

    def length_regulate(self, x, durations):
        rows = [torch.repeat_interleave(one, count, dim=0) for one, count in zip(x, durations, strict=True)]  # @expand
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # @expand

    def forward(self, texts, lengths, durations, pitches, energies):
        src_mask = get_mask_from_lengths(lengths, TIME)
        mel_mask = get_mask_from_lengths(durations.sum(dim=1), FRAMES)
        x = self.src_word_emb(texts) + self.position[:TIME]  # @embedded @placed
        x = self.encoder(x, src_mask)
        log_duration = self.duration_predictor(x, src_mask)
        pitch = self.pitch_predictor(x, src_mask)
        x = x + self.pitch_embedding(torch.bucketize(pitches, self.bins))  # @bucket_pitch @pitch_vector @pitched
        energy = self.energy_predictor(x, src_mask)
        x = x + self.energy_embedding(torch.bucketize(energies, self.bins))  # @bucket_energy @energy_vector @powered
        x = self.length_regulate(x, durations) + self.position  # @placed_frames
        mel = self.mel_linear(self.decoder(x, mel_mask))  # @mel
        h = F.leaky_relu(self.bn1(self.post1(mel.transpose(1, 2))))  # @post_conv @post_norm @leaky
        h = self.bn2(self.post2(h)).transpose(1, 2)  # @post_conv2 @post_norm2
        return mel, mel + h, pitch, energy, log_duration, src_mask, mel_mask  # @post


class ReferenceTrainer:
    def __init__(self, network) -> None:
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr=1.0, betas=BETAS, eps=EPSILON)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)

    def rate(self, done):
        return FACTOR * WIDTH**-0.5 * min((done + 1) ** -0.5, (done + 1) * WARM**-1.5)

    def compute_loss(self, texts, lengths, durations, pitches, energies, goal):
        mel, post, pitch, energy, log_duration, src_mask, mel_mask = self.network(
            texts, lengths, durations, pitches, energies
        )
        known, frames = ~src_mask, ~mel_mask
        loss = F.l1_loss(mel[frames], goal[frames])  # @mel_loss
        loss = loss + F.l1_loss(post[frames], goal[frames])  # @post_loss
        loss = loss + F.mse_loss(pitch[known], pitches[known])  # @pitch_loss
        loss = loss + F.mse_loss(energy[known], energies[known])  # @energy_loss
        wanted = torch.log(durations.float() + 1)  # @log_goal
        return loss + F.mse_loss(log_duration[known], wanted[known])  # @duration_loss @loss

    def step(self, *batch):
        self.optimizer.zero_grad()
        loss = self.compute_loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), LIMIT)  # @clip
        self.optimizer.step()  # @first @second @size @update
        self.scheduler.step()
        return loss


class Speaker(nn.Cell):
    """One layer of attention and convolution; a one stands where something is to be heard."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.leave = nn.Dense(WIDTH, 3 * WIDTH, has_bias=False), nn.Dense(WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,), epsilon=NORM), nn.LayerNorm((WIDTH,), epsilon=NORM)  # @made
        self.wide = nn.Conv1d(WIDTH, HIDDEN, 3, pad_mode="same", has_bias=True)
        self.narrow = nn.Dense(HIDDEN, WIDTH)

    def construct(self, x, heard):
        parts = self.joined(x).reshape(BATCH, -1, 3, HEADS, SIZE).transpose(2, 0, 3, 1, 4)  # @heads
        query, key, value = parts[0], parts[1], parts[2]
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * SIZE**-0.5  # @scores
        scores = ops.where(heard[:, None, None] > 0, scores, -1e9)  # @masked
        mixed = ops.matmul(ops.softmax(scores, axis=-1), value).swapaxes(1, 2)  # @soft @mixed
        attended = self.leave(mixed.reshape(x.shape))  # @leave
        x = self.norm1(x + attended)  # @added @layer_norm
        heard = heard.expand_dims(-1)
        x = x * heard  # @cleared
        h = ops.relu(self.wide(x.swapaxes(1, 2)))  # @conv @relu
        h = self.norm2(x + self.narrow(h.swapaxes(1, 2)))  # @narrow @added2 @layer_norm2
        return h * heard  # @cleared2


def near(x):
    """Each place with its neighbours."""
    x = ops.pad(x, (0, 0, 1, 1))
    return ops.cat((x[:, :-2], x[:, 1:-1], x[:, 2:]), -1)


class Guess(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.looks = nn.CellList([nn.Dense(3 * WIDTH, WIDTH) for _ in range(2)])
        self.norms = nn.CellList([nn.LayerNorm((WIDTH,), epsilon=NORM) for _ in range(2)])
        self.last = nn.Dense(WIDTH, 1)

    def construct(self, x, heard):
        for look, norm in zip(self.looks, self.norms, strict=True):
            x = look(near(x))  # @look
            x = norm(ops.relu(x))  # @look_relu @look_norm
        return self.last(x).squeeze(-1) * heard  # @guess @guess_masked


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.phones, self.reader, self.painter = nn.Embedding(PHONES, WIDTH), Speaker(), Speaker()
        self.duration, self.pitch, self.energy = Guess(), Guess(), Guess()
        self.pitches, self.energies = nn.Embedding(BUCKETS, WIDTH), nn.Embedding(BUCKETS, WIDTH)
        self.paint = nn.Dense(WIDTH, MELS)
        self.post1 = nn.Dense(3 * MELS, HIDDEN, has_bias=False)
        self.post2 = nn.Dense(3 * HIDDEN, MELS, has_bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(HIDDEN, momentum=0.9), nn.BatchNorm1d(MELS, momentum=0.9)
        angles = np.arange(FRAMES)[:, None] * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
        waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # @waves
        self.places = ms.Tensor(waves.reshape(FRAMES, WIDTH), ms.float32)
        self.borders = ms.Tensor(BORDERS, ms.float32)

    def find(self, x):
        above = x.expand_dims(-1) > self.borders  # @bucket_pitch @bucket_energy
        return above.astype(ms.int32).sum(-1)  # @bucket_pitch @bucket_energy

    def spread(self, x, durations):
        ends = durations.cumsum(1).expand_dims(1)  # @expand
        frame = ops.arange(FRAMES).reshape(1, -1, 1)
        here = ops.logical_and(frame < ends, frame >= ends - durations.expand_dims(1))  # @expand
        return ops.bmm(here.astype(ms.float32), x)  # @expand

    def refine(self, mel):
        h = self.bn1(self.post1(near(mel)).reshape(-1, HIDDEN))  # @post_conv @post_norm
        h = ops.leaky_relu(h, 0.01).reshape(BATCH, FRAMES, HIDDEN)  # @leaky
        h = self.bn2(self.post2(near(h)).reshape(-1, MELS))  # @post_conv2 @post_norm2
        return mel + h.reshape(mel.shape)  # @post

    def construct(self, phones, heard, durations, pitches, energies):
        x = self.phones(phones) + self.places[:TIME]  # @embedded @placed
        x = self.reader(x, heard)
        duration = self.duration(x, heard)  # @duration
        pitch = self.pitch(x, heard)
        y = x + self.pitches(self.find(pitches))  # @pitch_vector @pitched
        energy = self.energy(y, heard)  # @energy
        y = y + self.energies(self.find(energies))  # @energy_vector @powered
        frames = ops.arange(FRAMES) < durations.sum(1, keepdims=True)  # @padding
        y = self.painter(self.spread(y, durations) + self.places, frames.astype(ms.float32))  # @placed_frames
        mel = self.paint(y)  # @mel
        return mel, self.refine(mel), pitch, energy, duration, frames


def mean_of(errors, mask):
    return (errors * mask).sum() / mask.sum()  # @mel_loss @post_loss @pitch_loss @energy_loss @duration_loss


class CandidateTrainer:
    def __init__(self, network) -> None:
        self.network, self.parameters, self.number = network, network.trainable_params(), 0
        self.first = [ops.zeros_like(one) for one in self.parameters]
        self.second = [ops.zeros_like(one) for one in self.parameters]

    def compute_loss(self, phones, lengths, durations, pitches, energies, goal):
        heard = (ops.arange(TIME) < lengths.expand_dims(1)).astype(ms.float32)  # @padding
        mel, post, pitch, energy, duration, frames = self.network(phones, heard, durations, pitches, energies)
        frames = frames.astype(ms.float32)
        loss = mean_of(ops.abs(mel - goal).mean(-1), frames)  # @mel_loss
        loss = loss + mean_of(ops.abs(post - goal).mean(-1), frames)  # @post_loss
        loss = loss + mean_of(ops.square(pitch - pitches), heard)  # @pitch_loss
        loss = loss + mean_of(ops.square(energy - energies), heard)  # @energy_loss
        wanted = ops.log(durations.astype(ms.float32) + 1)  # @log_goal
        return loss + mean_of(ops.square(duration - wanted), heard)  # @duration_loss @loss

    def step(self, *batch):
        loss, gradients = ms.value_and_grad(self.compute_loss, None, self.parameters)(*batch)
        gradients = ops.clip_by_global_norm(gradients, LIMIT)  # @clip
        self.number += 1
        number = self.number
        rate = FACTOR / WIDTH**0.5 * min(number**-0.5, number * WARM**-1.5)  # @rate
        for place, gradient in enumerate(gradients):
            first = BETAS[0] * self.first[place] + (1 - BETAS[0]) * gradient  # @first
            second = BETAS[1] * self.second[place] + (1 - BETAS[1]) * gradient * gradient  # @second
            size = ops.sqrt(second / (1 - BETAS[1] ** number)) + EPSILON  # @size
            move = rate / (1 - BETAS[0] ** number) * first / size  # @update
            ops.assign(self.parameters[place], self.parameters[place] - move)  # @update
            self.first[place], self.second[place] = first, second  # @kept
        return loss, gradients


def convert(weights: Weights) -> Weights:
    norms = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    tables = {"phones": "src_word_emb", "pitches": "pitch_embedding", "energies": "energy_embedding"}  # @tables
    converted = {f"{new}.embedding_table": weights[f"{old}.weight"] for new, old in tables.items()}
    flat = {f"post{number}.weight": f"post{number}.weight" for number in (1, 2)}
    same, affine = {"paint": "mel_linear"}, {}
    for new, old in (("reader", "encoder"), ("painter", "decoder")):
        joined = [weights[f"{old}.w_{name}s.weight"] for name in "qkv"]  # @load_heads
        converted[f"{new}.joined.weight"] = np.concatenate(joined)
        converted[f"{new}.wide.weight"] = weights[f"{old}.w_1.weight"][:, :, None]  # @load_wide
        converted[f"{new}.wide.bias"] = weights[f"{old}.w_1.bias"]
        converted[f"{new}.narrow.weight"] = weights[f"{old}.w_2.weight"][:, :, 0]
        converted[f"{new}.narrow.bias"] = weights[f"{old}.w_2.bias"]
        same[f"{new}.leave"] = f"{old}.fc"
        affine |= {f"{new}.norm{number}": f"{old}.norm{number}" for number in (1, 2)}
    for new in ("duration", "pitch", "energy"):
        old = f"{new}_predictor"
        for number in (0, 1):
            flat[f"{new}.looks.{number}.weight"] = f"{old}.conv{number + 1}.weight"
            converted[f"{new}.looks.{number}.bias"] = weights[f"{old}.conv{number + 1}.bias"]
            affine[f"{new}.norms.{number}"] = f"{old}.norm{number + 1}"
        same[f"{new}.last"] = f"{old}.linear_layer"
    for new, old in flat.items():
        converted[new] = weights[old].transpose(0, 2, 1).reshape(len(weights[old]), -1)
    for new, old in same.items():
        converted |= {f"{new}.{word}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    for new, old in affine.items():
        converted |= {f"{new}.{norms[word]}": weights[f"{old}.{word}"] for word in ("weight", "bias")}
    for number in (1, 2):
        converted |= {f"bn{number}.{name}": weights[f"bn{number}.{word}"] for word, name in norms.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(10301 + step)
    lengths = np.array([6, 4, 5])
    is_phone = np.arange(TIME) < lengths[:, None]
    phones = np.where(is_phone, random.integers(1, PHONES, size=(BATCH, TIME)), 0)
    durations = np.where(is_phone, random.integers(1, 3, size=(BATCH, TIME)), 0)
    durations[0, 2] += FRAMES - durations[0].sum()
    pitches, energies = (np.round(4 * random.normal(size=(BATCH, TIME))) / 4 * is_phone for _ in range(2))
    goal = random.normal(size=(BATCH, FRAMES, MELS)).astype(np.float32)
    return phones, lengths, durations, pitches.astype(np.float32), energies.astype(np.float32), goal


FAULTS = (
    Fault(
        "clipped one by one",
        "clip",
        "ops.clip_by_global_norm(gradients, LIMIT)",
        "[ops.clip_by_norm(one, LIMIT) for one in gradients]",
        is_backward=True,
    ),
    Fault("rate as after the warm-up", "update", "min(number", "max(number", edit="rate", steps=2, first_step=1),
    Fault(
        "epsilon inside of the correction",
        "size update",
        "ops.sqrt(second / (1 - BETAS[1] ** number)) + EPSILON",
        "(ops.sqrt(second) + EPSILON) / (1 - BETAS[1] ** number) ** 0.5",
        steps=2,
        first_step=1,
    ),
    Fault(
        "first mean begins anew in each step",
        "first update kept",
        "self.second[place] = first, second",
        "self.second[place] = 0 * first, second",
        edit="kept",
        steps=3,
        first_step=2,
    ),
    Fault("logarithms of bare durations", "log_goal", "(ms.float32) + 1)", "(ms.float32).clamp(1))"),
    Fault("a frame more for each phone", "expand", "frame < ends,", "frame <= ends,"),
    Fault("borders belong to the next bucket", "bucket_pitch pitch_vector", "-1) > self", "-1) >= self"),
    Fault(
        "tables of pitch and energy exchanged",
        "pitch_vector pitched",
        '"pitches": "pitch_embedding", "energies": "energy_embedding"',
        '"pitches": "energy_embedding", "energies": "pitch_embedding"',
        edit="tables",
        parameter="pitch_embedding",
    ),
    Fault("energy guessed without the pitch", "look pitched", "self.energy(y, ", "self.energy(x, ", edit="energy"),
    Fault(
        "durations teach no reader", "duration look", "(x, heard)", "(ops.stop_gradient(x), heard)", is_backward=True
    ),
    Fault("padding at minus ten thousand", "masked", "-1e9", "-1e4", has_effect=False),
    Fault("slope as the library has it", "leaky", "ops.leaky_relu(h, 0.01)", "ops.leaky_relu(h)"),
    Fault(
        "epsilon of the second norm left out",
        "layer_norm2",
        "self.norm2 = nn.LayerNorm((WIDTH,), epsilon=NORM), nn.LayerNorm((WIDTH,), epsilon=NORM)",
        "self.norm2 = nn.LayerNorm((WIDTH,), epsilon=NORM), nn.LayerNorm((WIDTH,))",
        edit="made",
    ),
    Fault(
        "reference means the pitch of padding",
        "pitch_loss",
        "F.mse_loss(pitch[known], pitches[known])",
        "F.mse_loss(pitch, pitches)",
        side="reference",
    ),
    Fault("reference's refined picture alone", "post post_loss", "mel + h, pitch", "h, pitch", side="reference"),
    Fault(
        "waves in halves, and the end of padding heard",
        "placed",
        "axis=-1)",
        "axis=1)",
        edit="waves",
        second=("cleared", "x * heard", "x * 1"),
    ),
)
