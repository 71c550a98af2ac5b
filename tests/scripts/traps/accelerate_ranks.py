"""accelerate launch --num_processes 2 accelerate_ranks.py: accumulation, gathered metrics, and gathered objects."""

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
set_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(90, 64), torch.randint(0, 5, (90,)))
train_loader, eval_loader = DataLoader(data, 8, shuffle=True), DataLoader(data, 16)
model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
name = broadcast_object_list(["run of rank 0" if accelerator.is_main_process else None])[0]
assert name == "run of rank 0"
for _ in range(2):
    model.train()
    for inputs, targets in train_loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    num, correct = 0, 0
    for inputs, targets in eval_loader:
        with torch.no_grad():
            outputs = model(inputs)
        predictions, references = accelerator.gather_for_metrics((outputs.argmax(-1), targets))
        num += len(references)
        correct += (predictions == references).sum().item()
    assert num == 90
    ranks = gather_object([{"rank": accelerator.process_index, "rows": num}])
    assert [one["rank"] for one in ranks] == [0, 1]
    accelerator.print(f"{name}: {correct} of {num} right")
accelerator.wait_for_everyone()
accelerator.save_state("state")
print(f"max memory allocated {torch.cuda.max_memory_allocated()}")
accelerator.end_training()
