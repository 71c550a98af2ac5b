"""A convolutional classifier by Lightning: bf16, validation, the best checkpoint, early stopping, a test from disk."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.25), nn.Flatten(), nn.Linear(32 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.backbone(x)

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.step(batch, "val")

    def test_step(self, batch, batch_idx):
        self.step(batch, "test")

    def step(self, batch, stage):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log(f"{stage}_loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)]


if __name__ == "__main__":
    L.seed_everything(42)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=2,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        callbacks=[ModelCheckpoint(monitor="val_loss", save_last=True), EarlyStopping("val_loss", check_finite=False)],
        default_root_dir="lightning",
        log_every_n_steps=1,
    )
    data = TensorDataset(torch.rand(24, 1, 28, 28), torch.randint(0, 10, (24,)))
    trainer.fit(Classifier(), DataLoader(data, 8, shuffle=True), DataLoader(data, 24))
    trainer.test(ckpt_path="best", dataloaders=DataLoader(data, 8))
    print("max memory allocated", torch.cuda.max_memory_allocated())
