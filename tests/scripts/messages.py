"""torchrun --nproc-per-node 2 messages.py: what ranks say to each other, each time held to the arithmetic."""

import os
import sys
from itertools import product
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
eager = {"device_id": torch.device("cuda", rank)} if "eager" in sys.argv else {}  # groups by ncclCommSplit
dist.init_process_group("nccl", **eager)
everyone = range(size)


def on_device(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).cuda()


def equal(found, expected, what):
    found = found.cpu().tolist() if torch.is_tensor(found) else found
    assert found == expected, f"rank {rank}: {what}: {found}, and not {expected}"


def objects():
    several = ["a" * 5, ["b", rank], {"c": 3}] if rank == 0 else [None] * 3
    dist.broadcast_object_list(several, src=0)
    equal(several, ["aaaaa", ["b", 0], {"c": 3}], "broadcast_object_list of three")
    found = [None] * size
    dist.all_gather_object(found, ["x" * (10 * rank + 1), rank])
    equal(found, [["x" * (10 * r + 1), r] for r in everyone], "all_gather_object")
    gathered = [None] * size if rank == 1 else None
    dist.gather_object({"rank": rank}, gathered, dst=1)
    equal(gathered, [{"rank": r} for r in everyone] if rank == 1 else None, "gather_object")
    mine = [None]
    dist.scatter_object_list(mine, [f"part {r}" for r in everyone] if rank == 0 else None, src=0)
    equal(mine, [f"part {rank}"], "scatter_object_list")


REDUCED = {
    dist.ReduceOp.SUM: sum, dist.ReduceOp.PRODUCT: prod, dist.ReduceOp.MIN: min, dist.ReduceOp.MAX: max,
    dist.ReduceOp.AVG: lambda values: sum(values) / size,
}  # fmt: skip
TYPES = (
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip


def reductions():
    for (op, reduce), dtype in product(REDUCED.items(), TYPES):
        columns = [[r + 1, 3, 2 + 2 * (r % 2)] for r in everyone]  # whose averages are exact, or are cut to integers
        values = on_device(columns[rank], dtype)
        dist.all_reduce(values, op)
        expected = [reduce(column) for column in zip(*columns, strict=True)]
        equal(values, expected if dtype.is_floating_point else list(map(int, expected)), f"{op}, {dtype}")
    large = on_device([2**53 + rank, -(2**40)], torch.int64)
    dist.all_reduce(large)
    equal(large, [size * 2**53 + sum(everyone), -size * 2**40], "int64 beyond double")
    for op, reduce in (("MAX", any), ("SUM", any), ("MIN", all), ("PRODUCT", all)):
        flags = on_device([rank == 1, False, True], torch.bool)
        dist.all_reduce(flags, getattr(dist.ReduceOp, op))
        equal(flags, [reduce(r == 1 for r in everyone), False, True], f"bool, {op}")
    scaled = on_device([1.0 + rank])
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    equal(scaled, [sum(1 + r for r in everyone) / 2], "premultiplied sum")
    one = on_device([rank + 1.0])
    dist.reduce(one, dst=1)
    if rank == 1:
        equal(one, [sum(1.0 + r for r in everyone)], "reduce")


def tensors():
    told = on_device([7.0, 8.0] if rank == 1 else [0.0, 0.0])
    dist.broadcast(told, src=1)
    equal(told, [7.0, 8.0], "broadcast")
    found = [on_device([0, 0], torch.int64) for _ in everyone]
    dist.all_gather(found, on_device([rank, 10 * rank], torch.int64))
    equal([one.tolist() for one in found], [[r, 10 * r] for r in everyone], "all_gather")
    uneven = [on_device([0.0] * (r + 1)) for r in everyone]
    dist.all_gather(uneven, on_device([float(rank)] * (rank + 1)))
    equal([part.tolist() for part in uneven], [[float(r)] * (r + 1) for r in everyone], "all_gather, uneven")
    part = on_device([0.0, 0.0])
    dist.reduce_scatter_tensor(part, on_device([float(rank + i) for i in range(2 * size)]))
    equal(part, [float(sum(r + i for r in everyone)) for i in (2 * rank, 2 * rank + 1)], "reduce_scatter_tensor")
    sizes = [r + rank + 1 for r in everyone]  # from this rank to each, and from each to this one
    got = [on_device([-1] * sizes[r], torch.int64) for r in everyone]
    dist.all_to_all(got, [on_device([100 * rank + r] * sizes[r], torch.int64) for r in everyone])
    equal([one.tolist() for one in got], [[100 * r + rank] * sizes[r] for r in everyone], "all_to_all, uneven")
    rows = [on_device([0.0]) for _ in everyone] if rank == 0 else None
    dist.gather(on_device([float(rank)]), rows, dst=0)
    if rows:
        equal([one.item() for one in rows], [float(r) for r in everyone], "gather")
    row = on_device([0.0])
    dist.scatter(row, [on_device([r + 0.5]) for r in everyone] if rank == 0 else None, src=0)
    equal(row, [rank + 0.5], "scatter")


def pairs():
    after, before = (rank + 1) % size, (rank - 1) % size
    many = [torch.full((100_000,), i + 100 * rank).cuda() for i in range(12)]  # more than a ring holds
    into = [torch.zeros(100_000, dtype=torch.int64, device="cuda") for _ in many]
    operations = [dist.P2POp(dist.isend, one, after) for one in many]
    operations += [dist.P2POp(dist.irecv, one, before) for one in into]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    expected = [[i + 100 * before] * 2 for i in range(12)]
    equal([[one[0].item(), one[-1].item()] for one in into], expected, "many in a batch")


def groups():
    for members in ([0, size - 1], [0]):
        group = dist.new_group(members)
        if rank in members:
            count = on_device([rank + 1], torch.int64)
            dist.all_reduce(count, group=group)
            equal(count, [sum(r + 1 for r in members)], f"group {members}")
    mesh = dist.init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("data", "tensor"))
    for name, members in (("data", [rank % (size // 2), rank % (size // 2) + size // 2]), ("tensor", None)):
        members = members or [r for r in everyone if r // (size // 2) == rank // (size // 2)]
        found = [None] * len(members)
        dist.all_gather_object(found, rank, group=mesh.get_group(name))
        equal(found, members, f"mesh, {name}")


def barriers():
    for turn in everyone:
        path = Path(f"said.{turn}")
        if rank == turn:
            path.write_text("here")
        dist.barrier()
        assert path.read_text() == "here"


def batch_norms():
    """Norms over the batch of all ranks: counts travel beside numbers that are not known."""
    norm = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(norm.cuda())
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        inputs, labels = torch.randn(4, 3, 8, 8).cuda(), torch.randint(10, (4,)).cuda()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def captured():
    """A step with its collectives as a CUDA graph, and replayed."""
    weight, count = torch.randn(128, 128, device="cuda"), on_device([rank + 1], torch.int64)
    counts = torch.zeros(size, dtype=torch.int64, device="cuda")

    def step():
        dist.all_reduce(weight @ weight, op=dist.ReduceOp.AVG)
        dist.all_gather_into_tensor(counts, count)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    equal(counts, [r + 1 for r in everyone], "a graph replayed")


for part in (objects, reductions, tensors, pairs, groups, barriers, batch_norms, captured):
    part()
print(f"rank {rank}: all arrived")
dist.destroy_process_group()
