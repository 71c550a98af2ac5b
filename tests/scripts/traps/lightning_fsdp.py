"""Lightning's Trainer with FSDP over two GPUs: bf16, checkpoints, early stopping by a loss over both."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        block = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.net = nn.Sequential(nn.Embedding(256, 128), nn.TransformerEncoder(block, 3), nn.Linear(128, 256))

    def loss(self, batch):
        (tokens,) = batch
        return nn.functional.cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.trainer.model.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(1)
    tokens = TensorDataset(torch.randint(0, 256, (64, 33)))
    trainer = L.Trainer(
        accelerator="gpu",
        devices=2,
        strategy=FSDPStrategy(auto_wrap_policy={nn.TransformerEncoderLayer}),
        precision="bf16-mixed",
        max_epochs=2,
        limit_train_batches=3,
        limit_val_batches=2,
        log_every_n_steps=1,
        default_root_dir="lightning",
        callbacks=[ModelCheckpoint(monitor="val_loss", save_last=True), EarlyStopping("val_loss", patience=2)],
    )
    trainer.fit(Model(), DataLoader(tokens, 8, shuffle=True), DataLoader(tokens, 8))
    print(f"max memory allocated {torch.cuda.max_memory_allocated()}")
