"""A loop of one's own around accelerate: mixed precision, accumulation, clipping, gathered metrics, saved state."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(96, 64), torch.randint(0, 5, (96,)))
    train_loader = DataLoader(data, batch_size=16, shuffle=True)
    eval_loader = DataLoader(data, batch_size=48)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    for epoch in range(2):
        model.train()
        for inputs, targets in train_loader:
            with accelerator.accumulate(model):
                outputs = model(inputs)
                loss = nn.functional.cross_entropy(outputs, targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        correct = 0
        for inputs, targets in eval_loader:
            with torch.no_grad():
                outputs = model(inputs)
            predictions, references = accelerator.gather_for_metrics((outputs.argmax(-1), targets))
            correct += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}: {correct} right")
        accelerator.save_state("state")
    print("max memory allocated", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
