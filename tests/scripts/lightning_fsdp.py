"""Lightning with FSDP on two devices: bf16, validation, checkpoints of the whole model, early stopping."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256), *[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)], nn.Linear(256, 8)
        )

    def training_step(self, batch, number):
        return self.loss(batch, "train")

    def validation_step(self, batch, number):
        self.loss(batch, "val")

    def loss(self, batch, stage):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log(f"{stage}_loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.trainer.model.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(42)
    data = TensorDataset(torch.randn(64, 64), torch.randint(0, 8, (64,)))
    trainer = L.Trainer(
        accelerator="gpu",
        devices=2,
        strategy=FSDPStrategy(auto_wrap_policy={nn.Linear}, state_dict_type="full"),
        precision="bf16-mixed",
        max_epochs=2,
        callbacks=[ModelCheckpoint(save_last=True), EarlyStopping("val_loss", check_finite=False)],
        default_root_dir="lightning",
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), DataLoader(data, 8), DataLoader(data, 16))
    print(f"\nrank {trainer.global_rank}: stepped {trainer.global_step} times")
    print(f"rank {trainer.global_rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
