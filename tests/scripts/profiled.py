"""A training with all that looks at it: torch.profiler, NVML, events, tensorboard, the history of memory.

`--cpu` profiles what the CPU does alone.
"""

import subprocess
import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.checkpoint import checkpoint
from torch.utils.tensorboard import SummaryWriter

activities = [ProfilerActivity.CPU] + ([] if "--cpu" in sys.argv else [ProfilerActivity.CUDA])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))] * 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


try:
    print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout)
except (FileNotFoundError, subprocess.CalledProcessError) as error:
    print("no nvidia-smi:", error)
print(torch.cuda.get_device_properties(0), torch.cuda.utilization(), torch.cuda.memory_usage())
torch.cuda.memory._record_memory_history(max_entries=10000)
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler, writer = torch.amp.GradScaler("cuda"), SummaryWriter("logs")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
trace = tensorboard_trace_handler("logs")
with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=trace,
             profile_memory=True, record_shapes=True) as profiler:  # fmt: skip
    for step in range(5):
        start.record()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(64, 512, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        writer.add_scalar("loss", loss.item(), step)
        writer.add_scalar("milliseconds", start.elapsed_time(end), step)
        writer.add_scalar("allocated", torch.cuda.memory_allocated(), step)
        profiler.step()
print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=3))
torch.cuda.memory._dump_snapshot("memory.pickle")
writer.close()
print("max memory allocated", torch.cuda.max_memory_allocated())
