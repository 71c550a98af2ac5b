"""torchrun --nproc-per-node 2 gathered.py: accelerate's loop, and its gatherings of objects, metrics and uneven tensors."""

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast, broadcast_object_list, gather_object, pad_across_processes, reduce
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
rank, size = accelerator.process_index, accelerator.num_processes
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
dataset = torch.utils.data.TensorDataset(torch.randn(44, 32), torch.arange(44) % 4)
loader = torch.utils.data.DataLoader(dataset, 8)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
seen = []
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    seen += accelerator.gather_for_metrics(y).tolist()
assert sorted(seen) == sorted(number % 4 for number in range(44)), sorted(seen)
assert gather_object([{"rank": rank, "text": "x" * (1 + rank)}]) == [
    {"rank": r, "text": "x" * (1 + r)} for r in range(size)
]
told = ["from the first", rank]
assert broadcast_object_list(told)[0] == "from the first"
assert broadcast(torch.tensor([rank + 5]).cuda()).tolist() == [5]
assert reduce(torch.tensor([rank + 1.0]).cuda(), "sum").tolist() == [size * (size + 1) / 2]
uneven = pad_across_processes(torch.ones(2 + rank, dtype=torch.int64).cuda(), pad_index=-1)
assert accelerator.gather(uneven).shape == (size * (1 + size),)
accelerator.save_state("accelerated")
print(f"rank {rank}: all arrived")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
accelerator.end_training()
