"""Diffusers: a small unconditional UNet with v-prediction, min-SNR weights and an average of the weights."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel, compute_snr

from tensorprobe.pytorch import PrecisionDebugger

SIZE, CHANNELS, BATCH, STEPS_OF_NOISE, GAMMA = 8, 3, 4, 40, 5.0


def create_model():
    model = UNet2DModel(
        sample_size=SIZE,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=4,
        dropout=0.0,
    )
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(p.shape)).astype(np.float32)
            if p.ndim == 1:
                x = 0.1 * x + (1.0 if name.endswith("weight") else 0.0)
            else:
                x = x / np.sqrt(x[0].size)
            p.copy_(torch.from_numpy(x.astype(np.float32)))
    return model


def images(step):
    """uint8 pictures as they come from the disk: height, width, channel"""
    rs = np.random.RandomState(31 * step + 5)
    y, x = np.mgrid[:SIZE, :SIZE]
    waves = np.stack([np.sin(x[..., None] * rs.rand(3) + y[..., None] * rs.rand(3) + rs.rand(3) * 6) for _ in range(BATCH)])
    pixels = np.round(127.5 + 100 * waves + 10 * rs.standard_normal(waves.shape)).clip(0, 255).astype(np.uint8)
    noise = rs.standard_normal((BATCH, CHANNELS, SIZE, SIZE)).astype(np.float32)
    timesteps = rs.randint(0, STEPS_OF_NOISE, BATCH)
    return pixels, noise, timesteps


def transform(pixels):
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 127.5 - 1.0


def train(dump):
    model = create_model()
    model.train()
    ema = EMAModel(model.parameters(), decay=0.995, use_ema_warmup=True, power=0.75, foreach=True)
    scheduler = DDPMScheduler(
        num_train_timesteps=STEPS_OF_NOISE, beta_start=1e-3, beta_end=0.2, beta_schedule="scaled_linear", prediction_type="v_prediction"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.95, 0.999), weight_decay=1e-2, eps=1e-6, fused=True)
    debugger = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        pixels, noise, timesteps = images(step)
        clean, noise, timesteps = transform(pixels), torch.from_numpy(noise), torch.from_numpy(timesteps)
        debugger.start(model)
        noisy = scheduler.add_noise(clean, noise, timesteps)
        prediction = model(noisy, timesteps).sample
        target = scheduler.get_velocity(clean, noise, timesteps)
        snr = compute_snr(scheduler, timesteps)
        weight = torch.stack([snr, GAMMA * torch.ones_like(snr)], dim=1).min(dim=1)[0] / (snr + 1)
        loss = F.mse_loss(prediction.float(), target.float(), reduction="none")
        loss = loss.mean(dim=list(range(1, loss.ndim))) * weight
        loss = loss.mean()
        loss.backward()
        grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        ema.step(model.parameters())
        debugger.stop()
        debugger.step()
        size = sum(p.detach().double().square().sum() for p in model.parameters()).sqrt()
        average = sum(p.detach().double().square().sum() for p in ema.shadow_params).sqrt()
        print(f"step {step} loss {loss.item():.8f} grad {grad:.8f} weights {size:.8f} average {average:.8f}")


if __name__ == "__main__":
    train(sys.argv[1])
