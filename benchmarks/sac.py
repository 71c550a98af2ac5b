"""PyTorch's own planner of selective checkpoints, as a rival in `benchmarks.fit`: torch.distributed._tools.sac_ilp.

`solve` runs in a child on a rehearsed GPU: it estimates a fake step and solves the ILP, which names modules and the
fraction of its activations that each discards; `planned` is the model with these, by torch's selective checkpoint.
Source of the calls: PyTorch's test/distributed/_tools/test_sac_ilp.py.
"""

import copy
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from profiler.core import catalogue
from profiler.core.case import Case, Choice, decode
from profiler.core.units import GIB
from profiler.engines.worker import tell
from profiler.predicting.fake_tensors import fake_tensors, unseen
from profiler.rehearsal import device as rehearsed_device
from profiler.training import models
from profiler.training.assemble import assemble
from profiler.training.workload import Workload

SECONDS = 30  # of each ILP
ROOFLINE, GPU = "operator-level-cost-model", "NVIDIA H100"
TRIES = (1.6, 1.3, 1.0, 0.8, 0.6)  # of the memory besides the optimizer's state: its estimate may be off either way


def solve(request: str, channel: int) -> None:
    """Write which operators each module saves under each budget of TRIES to a file; send how many, or why not.

    The request is a step, the bytes that it has to fit, and the file.
    """
    case, limit_bytes, file = decode(request, tuple[Case, int, str])
    rehearsed_device.choose(case.device)
    policies = []
    try:
        from torch.distributed._tools import ilp_utils, sac_ilp

        limited: Any = sac_ilp
        solver = limited.PULP_CBC_CMD
        limited.PULP_CBC_CMD = lambda **options: solver(**{**options, "timeLimit": min(SECONDS, options["timeLimit"])})
        with fake_tensors(), unseen():
            graph, estimator, state_bytes = _estimated(case, ilp_utils)
        root = graph.nodes[0]["fqn"]
        for part in TRIES:
            budget = part * (limit_bytes - state_bytes) / GIB
            discards, _, peak = sac_ilp.sac_milp(graph, memory_budget=budget)
            if peak < 0:
                break  # none of a smaller budget
            saves = sac_ilp.get_optimal_checkpointing_policy_per_module
            kept = {name: saves(estimator.sac_mod_stats[name], 1 - ratio) for name, ratio in discards.items()}
            policies.append({name.removeprefix(root).removeprefix("."): chosen for name, chosen in kept.items()})
        if not policies:
            raise ValueError("no solution for this budget")
    except Exception as error:  # noqa: BLE001  private code of PyTorch, which may raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        tell(channel, {"why": f"{type(error).__name__}: {why}"})
        return
    Path(file).write_text(json.dumps({"model": case.model, "policies": policies}))
    tell(channel, {"num_policies": len(policies)})


def planned(batch_size: int, *, file: str, place: int) -> Workload:
    """Return the model of the file with policy number `place`."""
    written = json.loads(Path(file).read_text())
    build, options = catalogue.load(Choice(written["model"]), models.TABLE)
    workload: Workload = build(batch_size=batch_size, **options)
    for name, saves in written["policies"][place].items():
        module = workload.module.get_submodule(name)
        contexts = partial(_contexts, saves)
        module.forward = partial(checkpoint, module.forward, use_reentrant=False, context_fn=contexts)
    return workload


def _contexts(saves: list[int]) -> tuple[Any, Any]:
    """Return the contexts of a checkpoint that saves the results of these operators, counted from its first."""
    from torch.distributed._tools.sac_estimator import OPS_TO_ALWAYS_SKIP

    counts = Counter[bool]()

    def policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        if operator in OPS_TO_ALWAYS_SKIP:
            return CheckpointPolicy.PREFER_RECOMPUTE
        number = counts[context.is_recompute]
        counts[context.is_recompute] += 1
        is_saved = number < len(saves) and saves[number]
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _estimated(case: Case, ilp_utils: Any) -> tuple[Any, Any, int]:
    """Return the graph of the model's modules, the estimator, and the bytes of the optimizer's state."""
    from torch.distributed._tools import runtime_estimator
    from torch.distributed._tools.mem_tracker import MemTracker, _ModState
    from torch.distributed._tools.sac_estimator import SACEstimator

    built = assemble(case)
    workload, (optimizer, step) = built.workload, built.trainer()
    tracker, last = MemTracker(), {}
    tracker.track_external(workload.module, optimizer)

    def mark(phase: str) -> None:
        if phase == "optimizer":
            last.update(tracker.get_tracker_snapshot("current"))

    with tracker:
        step(mark)
        tracker.reset_mod_stats()
        step(mark)
    for stats in tracker.memory_tracking.values():  # of modules whose inputs need no gradients
        stats.snapshots.setdefault(_ModState.POST_BW, [copy.deepcopy(last)])
    mended: Any = runtime_estimator
    time = mended.get_compute_time  # which refuses attention in 16 bits: it takes what one of its output's type does
    mended.get_compute_time = lambda *given, **named: time(
        *given[:-1], set(sorted(given[-1], key=lambda dtype: dtype.itemsize)[:1]), **named
    )
    runtimes, estimator = runtime_estimator.RuntimeEstimator(gpu_type=GPU), SACEstimator(gpu_type=GPU)
    with runtimes(estimate_mode_type=ROOFLINE):
        step(lambda phase: None)
    with estimator(estimate_mode_type=ROOFLINE):
        loss = workload.loss(workload.module, workload.batch)
    loss.backward()
    device = torch.device(case.torch_device)
    device = torch.device(device.type, device.index or 0)
    graph = ilp_utils.parse_module_info(
        ilp_utils.aggregate_stats(workload.module, tracker, runtimes, estimator, device)
    )
    state = [one for of in optimizer.state.values() for one in of.values() if isinstance(one, torch.Tensor)]
    return graph, estimator, sum(one.nbytes for one in state if one.device == device)
