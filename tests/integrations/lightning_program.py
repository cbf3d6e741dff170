"""A training with Lightning: dropout, accumulation, validation in the middle of a step, metrics, checkpoints."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4


class Net(pl.LightningModule):
    """Logs an average over the epoch, which grows from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 4)
        self.losses: list[torch.Tensor] = []

    def loss_of(self, batch: Any) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(batch[0])), batch[1])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.losses.append(loss.detach().clone())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validation", self.loss_of(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-2)


class ManualNet(Net):
    """Accumulates two batches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        if index % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()
        return loss


class TwoOptimizers(ManualNet):
    """Each batch makes a step of one optimizer, and then of another."""

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            self.manual_backward(self.loss_of(batch))
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), 1e-2) for part in (self.body, self.head)]


def train(net_type: type[Net], callbacks: list[pl.Callback], *, resume: str | None = None, **options: Any) -> Any:
    """Train; every loss, every weight and the state of the random numbers afterwards."""
    pl.seed_everything(0)
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    data = TensorDataset(images, labels)
    net = net_type()
    accumulation = {"accumulate_grad_batches": 2} if net.automatic_optimization else {}
    choices = {"max_steps": STEPS, "val_check_interval": 3, **accumulation, **options}
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, ModelCheckpoint("out", "{step}", every_n_train_steps=2, save_top_k=-1)],
        **choices,
    )
    trainer.fit(net, DataLoader(data, batch_size=4), DataLoader(data, batch_size=16), ckpt_path=resume)
    return [*net.losses, *(weight.detach().clone() for weight in net.parameters()), torch.get_rng_state()]
