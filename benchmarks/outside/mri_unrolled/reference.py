"""Parallel MRI: an unrolled network between k-space and image, coil maps, learned regularizer, SSIM and k-space loss."""
import os, sys, zlib
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.fft import fft2, fftshift, ifft2, ifftshift
import tensorprobe

COILS, SIZE, CHANNELS, ROUNDS, BATCH = 3, 10, 5, 3, 2


def to_kspace(x):
    return fftshift(fft2(ifftshift(x, dim=(-2, -1)), norm="ortho"), dim=(-2, -1))


def to_image(k):
    return fftshift(ifft2(ifftshift(k, dim=(-2, -1)), norm="ortho"), dim=(-2, -1))


class Regularizer(nn.Module):
    """Real and imaginary part as channels, scaled to zero mean and unit deviation before the convolutions."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, CHANNELS, 3, padding=1, padding_mode="circular"), nn.InstanceNorm2d(CHANNELS, affine=True), nn.Softplus(),
            nn.Conv2d(CHANNELS, 2, 3, padding=1, padding_mode="circular"))

    def forward(self, image):
        x = torch.view_as_real(image).permute(0, 3, 1, 2)
        mean, std = x.mean(dim=(2, 3), keepdim=True), x.std(dim=(2, 3), keepdim=True)
        x = self.net((x - mean) / std) * std + mean
        return torch.view_as_complex(x.permute(0, 2, 3, 1).contiguous())


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.regularizers = nn.ModuleList(Regularizer() for _ in range(ROUNDS))
        self.rates = nn.Parameter(torch.ones(ROUNDS))
        self.mixing = nn.Parameter(torch.zeros(COILS, COILS, dtype=torch.cfloat))  # whitening of the coils

    def forward(self, kspace, maps, mask):
        kspace = torch.einsum("ij,bjhw->bihw", self.mixing, kspace)
        image = (to_image(kspace) * maps.conj()).sum(dim=1)
        for rate, regularizer in zip(self.rates, self.regularizers):
            expected = to_kspace(image[:, None] * maps)
            error = torch.where(mask, expected - kspace, torch.zeros((), dtype=expected.dtype))
            gradient = (to_image(error) * maps.conj()).sum(dim=1)
            image = image - rate * gradient - regularizer(image)
        return image


def ssim_loss(x, y, k1=0.01, k2=0.03, window=5):
    x, y = x[:, None], y[:, None]
    top = y.amax(dim=(1, 2, 3), keepdim=True)
    c1, c2 = (k1 * top) ** 2, (k2 * top) ** 2
    ux, uy = F.avg_pool2d(x, window, 1), F.avg_pool2d(y, window, 1)
    norm = window**2 / (window**2 - 1)
    vx = norm * (F.avg_pool2d(x * x, window, 1) - ux * ux)
    vy = norm * (F.avg_pool2d(y * y, window, 1) - uy * uy)
    vxy = norm * (F.avg_pool2d(x * y, window, 1) - ux * uy)
    s = ((2 * ux * uy + c1) * (2 * vxy + c2)) / ((ux**2 + uy**2 + c1) * (vx + vy + c2))
    return 1 - s.mean()


def initial(name, shape):
    value = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name == "mixing":
        return np.eye(COILS) + 0.1 * (value + 1j * value[::-1])
    if name == "rates" or name.endswith("net.1.weight"):
        return 1 + 0.2 * value
    return value * (0.1 if len(shape) == 1 else 0.5 / np.sqrt(np.prod(shape[1:])))


def make_batch(step):
    rng = np.random.default_rng([21, step])
    truth = rng.standard_normal((BATCH, SIZE, SIZE)) + 2 + 1j * rng.standard_normal((BATCH, SIZE, SIZE))
    maps = rng.standard_normal((BATCH, COILS, SIZE, SIZE, 2)) @ [1, 1j]
    maps /= np.sqrt((abs(maps) ** 2).sum(1, keepdims=True))
    mask = (rng.random((BATCH, 1, 1, SIZE)) < 0.5) | (abs(np.arange(SIZE) - SIZE // 2) < 2)
    shift = dict(axes=(-2, -1))
    kspace = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(truth[:, None] * maps, **shift), norm="ortho"), **shift) * mask
    return truth.astype(np.complex64), maps.astype(np.complex64), mask, kspace.astype(np.complex64)


def main():
    model = Unrolled()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(np.asarray(initial(name, tuple(p.shape)))))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, eps=1e-4)
    with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            truth, maps, mask, kspace = (torch.from_numpy(a) for a in make_batch(step))
            image = model(kspace, maps, mask)
            loss = ssim_loss(image.abs(), truth.abs()) + 0.1 * (to_kspace(image - truth)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step()
            print(f"{step} {loss.item():.8f} {sum(p.detach().abs().double().sum() for p in model.parameters()):.8f}")


if __name__ == "__main__":
    main()
