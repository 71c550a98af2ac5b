"""A compiler that refuses every graph: what calls the operators then runs as it is, under Dynamo."""

import random

import numpy
import torch


def refuse(graph, inputs):
    raise torch._dynamo.exc.SkipFrame("as Inductor refuses bf16 on a T4")


print(f"drawn {random.random():.6f} {numpy.random.rand():.6f} {torch.rand(()).item():.6f}", end=", ")
torch.ones((), device="cuda", requires_grad=True).backward()  # before any model is called
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda(), backend=refuse)
for _ in range(2):
    model(torch.ones(4, 8).cuda()).sum().backward()
print("compiled", torch._dynamo.utils.counters["frames"]["total"], "frames")
print("max memory allocated", torch.cuda.max_memory_allocated())
