"""A painter whose kernels a style modulates, and its critic: grouped kernels and filters, or scaled ends and tables."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, mint, nn, ops

from held_out.fault import Fault
from held_out.weight import Weights

NOISE, STYLE, WIDTH, COLOURS, SIDE, BATCH, GROUP, HIDDEN = 6, 6, 4, 3, 8, 4, 2, 5
SLOPE, GAIN, SLOW, TINY, EPSILON = 0.2, 2**0.5, 0.5, 1e-8, 1e-8
STRETCH, DRIFT, EVERY = 3.0, 0.5, 2
TAPS = (1.0, 3.0, 3.0, 1.0)


def upfirdn2d(x, factor, before, after, gain=1.0):
    batch, channels, height, width = x.shape
    x = F.pad(x.reshape(-1, 1, height, 1, width, 1), (0, factor - 1, 0, 0, 0, factor - 1))
    x = F.pad(x.reshape(-1, 1, height * factor, width * factor), (before, after, before, after))
    kernel = torch.outer(torch.tensor(TAPS), torch.tensor(TAPS))
    kernel = gain * kernel / kernel.sum()
    return F.conv2d(x, kernel[None, None]).reshape(batch, channels, *(x.shape[-1] - 3,) * 2)  # @filtered


class EqualLinear(torch.nn.Module):
    def __init__(self, in_dim, out_dim, lr_mul=1.0, activation=False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(out_dim, in_dim))
        self.bias = torch.nn.Parameter(torch.zeros(out_dim))
        self.scale, self.lr_mul, self.activation = STRETCH * in_dim**-0.5 * lr_mul, lr_mul, activation

    def forward(self, x):
        x = F.linear(x, self.weight * self.scale, self.bias * self.lr_mul)  # @equal @judged @slow_bias
        return F.leaky_relu(x, SLOPE) * GAIN if self.activation else x  # @equal_leaky


class EqualConv2d(torch.nn.Module):
    def __init__(self, in_channel, out_channel, kernel, stride=1, activation=True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(out_channel, in_channel, kernel, kernel))
        self.bias = torch.nn.Parameter(torch.zeros(out_channel)) if activation else None
        self.scale, self.stride = STRETCH * (in_channel * kernel**2) ** -0.5, stride
        self.padding = kernel // 2 if stride == 1 else 0

    def forward(self, x):
        x = F.conv2d(x, self.weight * self.scale, stride=self.stride, padding=self.padding)  # @seen
        if self.bias is None:
            return x
        return F.leaky_relu(x + self.bias.view(1, -1, 1, 1), SLOPE) * GAIN  # @biased


class ModulatedConv2d(torch.nn.Module):
    def __init__(self, in_channel, out_channel, kernel, demodulate=True, upsample=False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, out_channel, in_channel, kernel, kernel))
        self.modulation = EqualLinear(STYLE, in_channel)
        self.scale, self.demodulate, self.upsample = STRETCH * (in_channel * kernel**2) ** -0.5, demodulate, upsample

    def forward(self, x, style):
        batch, channels, height, width = x.shape
        _, leave, _, kernel, _ = self.weight.shape
        style = self.modulation(style).view(batch, 1, channels, 1, 1) + 1  # @style
        weight = self.scale * self.weight * style  # @scaled @modulated
        if self.demodulate:
            demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + TINY)  # @lengths @demod
            weight = weight * demod.view(batch, leave, 1, 1, 1)  # @demodulated
        x = x.reshape(1, batch * channels, height, width)
        if self.upsample:
            weight = weight.transpose(1, 2).reshape(batch * channels, leave, kernel, kernel)
            x = F.conv_transpose2d(x, weight, stride=2, groups=batch)  # @grown
            return upfirdn2d(x.view(batch, leave, *x.shape[2:]), 1, 1, 1, gain=4.0)  # @blurred
        weight = weight.view(batch * leave, channels, kernel, kernel)
        x = F.conv2d(x, weight, padding=kernel // 2, groups=batch)  # @convolved
        return x.view(batch, leave, height, width)


class StyledConv(torch.nn.Module):
    def __init__(self, upsample=False) -> None:
        super().__init__()
        self.conv = ModulatedConv2d(WIDTH, WIDTH, 3, upsample=upsample)
        self.noise_scale = torch.nn.Parameter(torch.zeros(1))
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x, style, noise):
        x = self.conv(x, style) + self.noise_scale * noise  # @noised
        return F.leaky_relu(x + self.bias.view(1, -1, 1, 1), SLOPE) * GAIN  # @activated @gained


class ToRGB(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = ModulatedConv2d(WIDTH, COLOURS, 1, demodulate=False)  # @even_made
        self.bias = torch.nn.Parameter(torch.zeros(COLOURS))

    def forward(self, x, style, skip=None):
        x = self.conv(x, style) + self.bias.view(1, -1, 1, 1)  # @coloured
        return x if skip is None else x + upfirdn2d(skip, 2, 2, 1, gain=4.0)  # @enlarged @joined


class Generator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.style = torch.nn.ModuleList([EqualLinear(NOISE, STYLE, SLOW, True), EqualLinear(STYLE, STYLE, SLOW, True)])
        self.constant = torch.nn.Parameter(torch.zeros(1, WIDTH, 4, 4))
        self.conv1, self.conv2, self.conv3 = StyledConv(), StyledConv(upsample=True), StyledConv()
        self.to_rgb1, self.to_rgb2 = ToRGB(), ToRGB()

    def forward(self, z, small, first, second):
        w = z * torch.rsqrt(z.pow(2).mean(dim=1, keepdim=True) + EPSILON)  # @pixel
        for layer in self.style:
            w = layer(w)
        x = self.conv1(self.constant.repeat(len(z), 1, 1, 1), w, small)  # @begun
        image = self.to_rgb1(x, w)
        x = self.conv3(self.conv2(x, w, first), w, second)
        return self.to_rgb2(x, w, image)


class Discriminator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.from_rgb = EqualConv2d(COLOURS, WIDTH, 1)
        self.conv1, self.conv2 = EqualConv2d(WIDTH, WIDTH, 3), EqualConv2d(WIDTH, WIDTH, 3, stride=2)
        self.skip = EqualConv2d(WIDTH, WIDTH, 1, stride=2, activation=False)
        self.final = torch.nn.ModuleList([EqualLinear((WIDTH + 1) * 16, HIDDEN, 1.0, True), EqualLinear(HIDDEN, 1)])

    def forward(self, x):
        x = self.from_rgb(x)
        h = self.conv2(upfirdn2d(self.conv1(x), 1, 2, 2))  # @shrunk
        skip = self.skip(upfirdn2d(x, 1, 1, 1))  # @past
        x = (h + skip) / 2**0.5  # @added @halved
        spread = x.view(GROUP, -1, 1, *x.shape[1:])  # @grouped
        spread = torch.sqrt(spread.var(0, unbiased=False) + EPSILON)  # @variance @deviation
        spread = spread.mean([2, 3, 4], keepdim=True).squeeze(2)  # @spread
        x = torch.cat([x, spread.repeat(GROUP, 1, 4, 4)], dim=1)  # @beside
        for layer in self.final:
            x = layer(x.flatten(1))
        return x.squeeze(1)


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()


def compute_reference_loss(network, real, z, small, first, second, step):
    fake = network.generator(z, small, first, second)
    network.discriminator.requires_grad_(False)  # @frozen
    loss = F.softplus(-network.discriminator(fake)).mean()  # @fooled
    network.discriminator.requires_grad_(True)
    score = network.discriminator(real)
    loss = loss + F.softplus(-score).mean()  # @truth @loss
    loss = loss + F.softplus(network.discriminator(fake.detach())).mean()  # @caught @given @loss
    if step % EVERY:
        loss = loss + DRIFT * EVERY * score.pow(2).mean()  # @drift @loss
    return loss


class Equal(nn.Cell):
    def __init__(self, enter: int, leave: int, slow: float = 1.0) -> None:
        super().__init__()
        self.weight = Parameter(ops.zeros((leave, enter)), name="weight")
        self.bias = Parameter(ops.zeros((leave,)), name="bias")
        self.slow, self.scale = slow, STRETCH * slow / enter**0.5

    def construct(self, x: Tensor) -> Tensor:
        x = ops.matmul(x, self.weight.T) * self.scale  # @equal
        return x + self.slow * self.bias  # @slow_bias


def make_blur(rows: int, columns: int, step: int, start: int, gain: float) -> Tensor:
    """Row by row what the filter takes of a line, in which the next pixel is a step further."""
    table = np.zeros((rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            tap = step * column + start - row
            if 0 <= tap < len(TAPS):
                table[row, column] = gain * TAPS[tap] / sum(TAPS)
    return Tensor(table)


def activate(x: Tensor, bias: Tensor) -> Tensor:
    x = x + bias.reshape(-1, 1, 1)  # @biased
    return ops.leaky_relu(x, SLOPE) * GAIN  # @activated @gained


class Modulated(nn.Cell):
    """What enters is scaled, and what leaves: all pictures have one kernel. No edges where it is grown."""

    def __init__(self, leave: int, size: int, is_grown: bool = False) -> None:
        super().__init__()
        self.kernel = Parameter(ops.zeros((leave, WIDTH, size, size)), name="kernel")
        self.affine = Equal(STYLE, WIDTH)
        self.scale = STRETCH / (WIDTH * size * size) ** 0.5
        self.is_grown, self.size = is_grown, size
        self.blur = make_blur(SIDE, SIDE + 1, 1, 1, 2.0)

    def spread(self, x: Tensor) -> Tensor:
        height = x.shape[2]
        x = ops.stack((x, ops.zeros_like(x)), 4).reshape(*x.shape[:3], 2 * height)
        x = ops.stack((x, ops.zeros_like(x)), 3).reshape(*x.shape[:2], 2 * height, 2 * height)
        return x[:, :, :-1, :-1]

    def construct(self, x: Tensor, style: Tensor, is_even: bool = True) -> Tensor:
        style = self.affine(style) + 1  # @style
        kernel = self.kernel * self.scale  # @scaled
        x = x * style.expand_dims(-1).expand_dims(-1)  # @modulated
        if self.is_grown:
            x = ops.conv2d(self.spread(x), kernel, pad_mode="pad", padding=2)  # @grown
            x = ops.matmul(ops.matmul(self.blur, x), self.blur.T)  # @blurred
        else:
            x = ops.conv2d(x, kernel, pad_mode="pad", padding=self.size // 2)  # @convolved
        if not is_even:
            return x
        lengths = ops.matmul(ops.square(style), ops.square(kernel).sum((2, 3)).T)  # @lengths
        return x * ops.rsqrt(lengths + TINY).reshape(*x.shape[:2], 1, 1)  # @demod @demodulated


class Styled(nn.Cell):
    def __init__(self, is_grown: bool = False) -> None:
        super().__init__()
        self.conv = Modulated(WIDTH, 3, is_grown)
        self.strength = Parameter(ops.zeros((1,)), name="strength")
        self.bias = Parameter(ops.zeros((WIDTH,)), name="bias")

    def construct(self, x: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        x = self.conv(x, style)
        x = x + noise * self.strength  # @noised
        return activate(x, self.bias)  # @activated


class Painter(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.map1, self.map2 = Equal(NOISE, STYLE, SLOW), Equal(STYLE, STYLE, SLOW)
        self.start = Parameter(ops.zeros((WIDTH, 4, 4)), name="start")
        self.small, self.grow, self.large = Styled(), Styled(True), Styled()
        self.colour1, self.colour2 = Modulated(COLOURS, 1), Modulated(COLOURS, 1)
        self.bias1 = Parameter(ops.zeros((COLOURS, 1, 1)), name="bias1")
        self.bias2 = Parameter(ops.zeros((COLOURS, 1, 1)), name="bias2")
        self.enlarge = make_blur(SIDE, SIDE // 2, 2, 2, 2.0)  # @enlarge_made

    def construct(self, z: Tensor, noises: tuple) -> Tensor:
        style = z / ops.sqrt(ops.square(z).mean(1, keep_dims=True) + EPSILON)  # @pixel
        style = ops.leaky_relu(self.map1(style), SLOPE) * GAIN  # @equal_leaky
        style = ops.leaky_relu(self.map2(style), SLOPE) * GAIN  # @equal_leaky
        x = self.small(self.start.expand_dims(0), style, noises[0])  # @begun
        image = self.colour1(x, style, False) + self.bias1  # @coloured
        x = self.large(self.grow(x, style, noises[1]), style, noises[2])
        image = ops.matmul(ops.matmul(self.enlarge, image), self.enlarge.T)  # @enlarged
        return image + (self.colour2(x, style, False) + self.bias2)  # @coloured @joined


class Critic(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        shapes = {"colour": (COLOURS, 1), "conv1": (WIDTH, 3), "conv2": (WIDTH, 3), "skip": (WIDTH, 1)}
        for name, (enter, size) in shapes.items():
            setattr(self, name, Parameter(ops.zeros((WIDTH, enter, size, size)), name=name))
        for name in ("colour_bias", "bias1", "bias2"):
            setattr(self, name, Parameter(ops.zeros((WIDTH,)), name=name))
        self.last1, self.last2 = Equal(16 * (WIDTH + 1), HIDDEN), Equal(HIDDEN, 1)
        self.blur = make_blur(SIDE + 1, SIDE, 1, 2, 1.0)
        self.past = make_blur(SIDE - 1, SIDE, 1, 1, 1.0)

    def list_weights(self, is_frozen: bool) -> list[Tensor]:
        weights = [self.colour, self.colour_bias, self.conv1, self.bias1, self.conv2, self.bias2, self.skip]
        weights += [self.last1.weight, self.last1.bias, self.last2.weight, self.last2.bias]
        return [ops.stop_gradient(one) for one in weights] if is_frozen else weights  # @frozen

    def look(self, x: Tensor, kernel: Tensor, stride: int = 1, edge: int = 0) -> Tensor:
        scale = STRETCH * float(np.prod(kernel.shape[1:])) ** -0.5
        return ops.conv2d(x, kernel * scale, stride=stride, pad_mode="pad", padding=edge)  # @seen

    def construct(self, x: Tensor, is_frozen: bool = False) -> Tensor:
        weights = self.list_weights(is_frozen)
        x = activate(self.look(x, weights[0]), weights[1])
        h = activate(self.look(x, weights[2], edge=1), weights[3])
        h = ops.matmul(ops.matmul(self.blur, h), self.blur.T)  # @shrunk
        h = activate(self.look(h, weights[4], 2), weights[5])
        past = ops.matmul(ops.matmul(self.past, x), self.past.T)  # @past
        x = (h + self.look(past, weights[6], 2)) * 0.5**0.5  # @added @halved
        groups = x.reshape(GROUP, -1, WIDTH, 4, 4)  # @grouped
        variance = ops.square(groups - groups.mean(0)).mean(0)  # @variance
        spread = ops.sqrt(variance + EPSILON).mean((1, 2, 3))  # @deviation @spread
        plane = ops.tile(spread, (GROUP,)).reshape(-1, 1, 1, 1).broadcast_to((len(x), 1, 4, 4))
        x = ops.cat((x, plane), 1).reshape(len(x), -1)  # @beside
        x = mint.nn.functional.linear(x, weights[7]) * self.last1.scale + weights[8]  # @judged
        x = ops.leaky_relu(x, SLOPE) * GAIN  # @equal_leaky
        return (mint.nn.functional.linear(x, weights[9]) * self.last2.scale + weights[10]).squeeze(1)  # @judged


class Candidate(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.painter, self.critic = Painter(), Critic()


def compute_candidate_loss(network, real, z, small, first, second, step):
    fake = network.painter(z, (small, first, second))
    fooled = ops.softplus(-network.critic(fake, True))  # @fooled
    caught = ops.softplus(network.critic(ops.stop_gradient(fake)))  # @caught @given
    score = network.critic(real)
    truth = ops.softplus(-score)  # @truth
    loss = (fooled + caught + truth).mean()  # @loss
    if step % EVERY == 1:
        loss = loss + ops.square(score).mean() * (EVERY * DRIFT)  # @drift @loss
    return loss


def convert(weights: Weights) -> Weights:
    old = {name.partition(".")[2]: array for name, array in weights.items()}
    converted = {"painter.start": old["constant"][0]}

    def take(new: str, path: str) -> None:
        converted.update({f"{new}.{word}": old[f"{path}.{word}"] for word in ("weight", "bias")})

    for number, name in enumerate(("map1", "map2")):
        take(f"painter.{name}", f"style.{number}")
    for number, name in enumerate(("small", "grow", "large"), 1):
        path, kernel = f"generator.conv{number}", weights[f"generator.conv{number}.conv.weight"][0]
        converted[f"painter.{name}.conv.kernel"] = kernel[:, :, ::-1, ::-1] if name == "grow" else kernel  # @load
        for word in ("weight", "bias"):
            converted[f"painter.{name}.conv.affine.{word}"] = weights[f"{path}.conv.modulation.{word}"]
        converted[f"painter.{name}.strength"] = weights[f"{path}.noise_scale"]
        converted[f"painter.{name}.bias"] = weights[f"{path}.bias"]
    for number in (1, 2):
        path = f"to_rgb{number}"
        converted[f"painter.colour{number}.kernel"] = old[f"{path}.conv.weight"][0]
        take(f"painter.colour{number}.affine", f"{path}.conv.modulation")
        converted[f"painter.bias{number}"] = old[f"{path}.bias"].reshape(-1, 1, 1)
        converted[f"critic.conv{number}"] = weights[f"discriminator.conv{number}.weight"]
        converted[f"critic.bias{number}"] = weights[f"discriminator.conv{number}.bias"]
        take(f"critic.last{number}", f"final.{number - 1}")
    converted |= {"critic.colour": old["from_rgb.weight"], "critic.colour_bias": old["from_rgb.bias"]}
    return converted | {"critic.skip": old["skip.weight"]}


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8800 + step)
    shapes = [(COLOURS, SIDE, SIDE), (NOISE,), (1, 4, 4), (1, SIDE, SIDE), (1, SIDE, SIDE)]
    return tuple(random.normal(size=(BATCH, *shape)).astype(np.float32) for shape in shapes)


FAULTS = (
    Fault(
        "noise divided by its length",
        "pixel",
        "ops.square(z).mean(1, keep_dims=True)",
        "ops.square(z).sum(1, keepdims=True)",
    ),
    Fault("bias at full speed", "slow_bias", "self.slow * self.bias", "self.bias"),
    Fault("styles around nothing", "style modulated", "self.affine(style) + 1", "self.affine(style)"),
    Fault(
        "scale of even kernels forgotten",
        "scaled",
        "* self.scale",
        "* (self.scale if self.size == 1 else 1.0)",
        has_effect=False,
    ),
    Fault("lengths by styles that are not squared", "lengths demod", "ops.square(style)", "ops.abs(style)"),
    Fault(
        "kernel not turned round",
        "grown",
        'kernel[:, :, ::-1, ::-1] if name == "grow" else kernel',
        "kernel",
        edit="load",
        parameter="generator.conv2.conv.weight",
    ),
    Fault("activation without its gain", "gained", "ops.leaky_relu(x, SLOPE) * GAIN", "ops.leaky_relu(x, SLOPE)"),
    Fault("light lost where pictures grow", "enlarged filtered", "2, 2, 2.0)", "2, 2, 1.0)", edit="enlarge_made"),
    Fault(
        "groups of neighbours",
        "grouped variance",
        "x.reshape(GROUP, -1, WIDTH, 4, 4)",
        "x.reshape(-1, GROUP, WIDTH, 4, 4).swapaxes(0, 1)",
    ),
    Fault(
        "deviation of the mean variance",
        "deviation spread",
        "ops.sqrt(variance + EPSILON).mean((1, 2, 3))",
        "ops.sqrt(variance.mean((1, 2, 3)) + EPSILON)",
    ),
    Fault("painted pictures not detached", "given seen", "ops.stop_gradient(fake)", "fake", is_backward=True),
    Fault(
        "critic not frozen",
        "frozen seen biased judged",
        "network.critic(fake, True)",
        "network.critic(fake)",
        edit="fooled",
        is_backward=True,
    ),
    Fault("drift counted as if it were in each step", "drift", "(EVERY * DRIFT)", "DRIFT", steps=2, first_step=1),
    Fault(
        "reference loses, and does not win",
        "fooled",
        "F.softplus(-network.discriminator(fake))",
        "-F.softplus(network.discriminator(fake))",
        side="reference",
    ),
    Fault(
        "reference has even colours",
        "lengths demodulated convolved",
        ", demodulate=False",
        "",
        edit="even_made",
        side="reference",
    ),
    Fault(
        "noise without its strength, and the sum not halved",
        "noised",
        "noise * self.strength",
        "noise",
        second=("halved", " * 0.5**0.5", ""),
    ),
)
