"""Unrolled reconstruction without complex kernels in the network: Fourier matrices, real pairs, convolution by unfolding."""
import os, sys, zlib
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
import tensorprobe

COILS, SIZE, CHANNELS, ROUNDS, BATCH = 3, 10, 5, 3, 2


def fourier_matrix(n):
    """Centred and unitary: its conjugate transpose is its inverse."""
    place = torch.arange(n, dtype=torch.float64) - n // 2
    return (torch.exp(-2j * torch.pi * place[:, None] * place / n) / n**0.5).to(torch.complex64)


class Convolution(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(cout, cin * 9))
        self.bias = nn.Parameter(torch.empty(cout, 1))

    def forward(self, x):
        x = torch.cat([x[..., -1:], x, x[..., :1]], dim=-1)
        x = torch.cat([x[..., -1:, :], x, x[..., :1, :]], dim=-2)
        return (self.kernel @ F.unfold(x, 3) + self.bias).unflatten(-1, (SIZE, SIZE))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Convolution(2, CHANNELS), Convolution(CHANNELS, 2)
        self.scale, self.shift = nn.Parameter(torch.empty(CHANNELS, 1, 1)), nn.Parameter(torch.empty(CHANNELS, 1, 1))

    def forward(self, pair):
        var, mean = torch.var_mean(pair, dim=(-2, -1), keepdim=True)
        std = var.sqrt()
        h = self.first((pair - mean) / std)
        h = F.batch_norm(h.flatten(0, 1)[None], None, None, training=True, eps=1e-5).view_as(h)
        h = torch.logaddexp(h * self.scale + self.shift, h.new_zeros(()))
        return torch.addcmul(mean, self.second(h), std)


class Reconstruction(nn.Module):
    def __init__(self):
        super().__init__()
        self.denoisers = nn.ModuleList([Denoiser() for _ in range(ROUNDS)])
        self.log = nn.ParameterDict({"rate": nn.Parameter(torch.empty(ROUNDS)), "mix": nn.Parameter(torch.empty(COILS, COILS, 2))})
        self.register_buffer("dft", fourier_matrix(SIZE), persistent=False)

    def measure(self, image, maps):
        return self.dft @ (image.unsqueeze(1) * maps) @ self.dft.mT

    def adjoint(self, kspace, maps):
        images = self.dft.mH @ kspace @ self.dft.conj()
        return torch.einsum("bcxy,bcxy->bxy", maps.conj(), images)

    def forward(self, kspace, maps, mask):
        mix = torch.view_as_complex(self.log["mix"])
        kspace = (mix @ kspace.flatten(2)).view_as(kspace)
        image = self.adjoint(kspace, maps)
        sampled = mask.to(image.real.dtype)
        for i, denoiser in enumerate(self.denoisers):
            step = self.adjoint((self.measure(image, maps) - kspace) * sampled, maps) * self.log["rate"][i]
            update = denoiser(torch.stack((image.real, image.imag), dim=1))
            image = image - step - torch.complex(update[:, 0], update[:, 1])
        return image


def local_sums(x, window=5):
    return x.unfold(-2, window, 1).unfold(-2, window, 1).sum(dim=(-2, -1))


def ssim(x, y, window=5):
    n = window * window
    peak = y.flatten(1).max(dim=1).values[:, None, None]
    a, b = (0.01 * peak).square(), (0.03 * peak).square()
    sx, sy = local_sums(x), local_sums(y)
    cov = (local_sums(x * y) - sx * sy / n) / (n - 1)
    var = (local_sums(x * x + y * y) - (sx * sx + sy * sy) / n) / (n - 1)
    light = (2 * sx * sy / n**2 + a) / ((sx.square() + sy.square()) / n**2 + a)
    return (light * (2 * cov + b) / (var + b)).mean()


def initial(name, *shape):
    value = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name == "mixing":
        return torch.view_as_real(torch.from_numpy(np.eye(COILS) + 0.1 * (value + 1j * value[::-1])))
    if name == "rates" or name.endswith("net.1.weight"):
        return torch.from_numpy(1 + 0.2 * value)
    return torch.from_numpy(value * (0.1 if len(shape) == 1 else 0.5 / np.sqrt(np.prod(shape[1:]))))


@torch.no_grad()
def load(model):
    model.log["rate"].copy_(initial("rates", ROUNDS))
    model.log["mix"].copy_(initial("mixing", COILS, COILS))
    for i, d in enumerate(model.denoisers):
        old = f"regularizers.{i}.net."
        d.first.kernel.copy_(initial(old + "0.weight", CHANNELS, 2, 3, 3).flatten(1))
        d.second.kernel.copy_(initial(old + "3.weight", 2, CHANNELS, 3, 3).flatten(1))
        d.first.bias.copy_(initial(old + "0.bias", CHANNELS)[:, None])
        d.second.bias.copy_(initial(old + "3.bias", 2)[:, None])
        d.scale.copy_(initial(old + "1.weight", CHANNELS)[:, None, None])
        d.shift.copy_(initial(old + "1.bias", CHANNELS)[:, None, None])


def make_batch(step):
    rng = np.random.default_rng([21, step])
    truth = rng.standard_normal((BATCH, SIZE, SIZE)) + 2 + 1j * rng.standard_normal((BATCH, SIZE, SIZE))
    maps = rng.standard_normal((BATCH, COILS, SIZE, SIZE, 2)) @ [1, 1j]
    maps /= np.sqrt((abs(maps) ** 2).sum(1, keepdims=True))
    mask = (rng.random((BATCH, 1, 1, SIZE)) < 0.5) | (abs(np.arange(SIZE) - SIZE // 2) < 2)
    shift = dict(axes=(-2, -1))
    kspace = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(truth[:, None] * maps, **shift), norm="ortho"), **shift) * mask
    return [torch.from_numpy(a) for a in (truth.astype(np.complex64), maps.astype(np.complex64), mask, kspace.astype(np.complex64))]


def main():
    model = Reconstruction()
    load(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-4, foreach=True)
    with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            truth, maps, mask, kspace = make_batch(step)
            model.zero_grad()
            image = model(kspace, maps, mask)
            difference = model.dft @ (image - truth) @ model.dft.mT
            length = (difference.real.square() + difference.imag.square()).sqrt()
            loss = 1 - ssim(image.abs(), truth.abs()) + length.mean() / 10
            loss.backward()
            optimizer.step()
            run.step()
            both = [p if p.shape[-1] != 2 else torch.view_as_complex(p) for p in (q.detach() for q in model.parameters())]
            print(f"{step} {loss.item():.8f} {sum(p.abs().double().sum() for p in both):.8f}")


if __name__ == "__main__":
    main()
