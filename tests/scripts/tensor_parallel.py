"""torchrun --nproc-per-node 4 tensor_parallel.py: a mesh of data and tensor parallel ranks, as torchtitan makes it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)  # fmt: skip

VOCABULARY, DIM, HEADS, LENGTH = 256, 128, 4, 64


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):  # (batch, time, dim)
        q, k, v = (w(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        )  # (batch, heads of this rank, time, dim)
        return self.wo(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(DIM, 4 * DIM, bias=False) for _ in range(2))
        self.w2 = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleDict({str(number): Block() for number in range(2)})
        self.norm, self.output = nn.RMSNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


WHOLE = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}
PART = {
    "attention_norm": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "mlp_norm": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "mlp.w1": ColwiseParallel(),
    "mlp.w2": RowwiseParallel(output_layouts=Shard(1)),
    "mlp.w3": ColwiseParallel(),
}

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
seed = [torch.seed()]
dist.broadcast_object_list(seed, src=0)
torch.manual_seed(seed[0])
with torch.device("meta"):
    model = Model()
parallelize_module(model, mesh["tp"], WHOLE)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, layer in model.layers.items():
    parallelize_module(layer, mesh["tp"], PART)
    model.layers[name] = fully_shard(checkpoint_wrapper(layer), mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device="cuda")
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for _ in range(3):
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1)).cuda()
    with loss_parallel():
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().full_tensor() if isinstance(loss, DTensor) else loss.detach()
    dist.all_reduce(total, op=dist.ReduceOp.AVG, group=mesh["dp"].get_group())
    float(total), float(norm)
shards = [None] * dist.get_world_size()
dist.all_gather_object(shards, [mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank(), seed[0]])
assert shards == [[r // 2, r % 2, seed[0]] for r in range(dist.get_world_size())], shards
get_model_state_dict(model)
print(f"rank {rank}: all arrived")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
