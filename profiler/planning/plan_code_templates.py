"""Templates of the emitted code, which users paste and read; the plan itself is filled in."""

from __future__ import annotations

from string import Template

OVERLOADS = '''

def _overloads(names):
    """All overloads of these operators of aten."""
    packets = [getattr(torch.ops.aten, name) for name in names]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
'''

DRAWS = '''

class _Draws(TorchDispatchMode):
    """What is kept draws no random numbers in the backward: operators after it begin where they began."""

    def __init__(self, context, states, again):
        super().__init__()
        self.context, self.states, self.again = context, states, again

    def __enter__(self):
        self.number = 0
        self.context.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.context.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags:
            sources = [torch, *([torch.cuda] if torch.cuda.is_initialized() else [])]
            if not self.again:
                self.states.append([source.get_rng_state() for source in sources])
            for source, state in zip(sources, self.states[self.number] if self.again else []):
                source.set_rng_state(state)
            self.number += 1
        return func(*args, **(kwargs or {}))


def _keeping(names):
    states, both = [], create_selective_checkpoint_contexts(_overloads(names))
    return tuple(_Draws(one, states, again) for one, again in zip(both, (False, True)))
'''

PYTHON = Template('''\
from functools import partial

$imports

# Each list of blocks is computed again in the backward; a list within a list once more, during that.
$plan

def apply_plan(model):
    """Change the model in place, after LoRA if it has any. Names stay: save its state_dict, not the model."""
$first    for run in PLAN:
        _Run(model, run)


class _Block:  # its call is above the hooks, which run where the block does its own work
    def __call__(self, *args, **kwargs):
        run, name = self._place
        if run.inside:
            return super().__call__(*args, **kwargs)
        if name == next(iter(run.blocks)):
            return run.checkpointed(run.run, *args, **kwargs)
        return (args[0],) if name in run.in_tuples else args[0]


class _Run:
    """Consecutive blocks: a call of the first one computes them all, the others' pass on what they are given."""

    def __init__(self, model, run):
        self.run, self.inside, self.in_tuples = run, False, set()
        self.blocks = {name: model.get_submodule(name) for name in _names(run)}
        for name, block in self.blocks.items():
            assert not hasattr(block, "_place"), f"a plan is applied once, and {name} has one"
            block._place, kind = (self, name), type(block)
            block.__class__ = type(kind.__name__, (_Block, kind), {"__module__": kind.__module__})

    def checkpointed(self, run, /, *args, **kwargs):
        first = self.blocks[_names(run)[0]]
        if getattr(first, "inplace", False):
            first.inplace = False  # it would write over what the run is computed from again
$checkpoint

    def compute(self, run, /, *args, **kwargs):
        before, self.inside = self.inside, True
        try:
            for item in run:
                step = self.blocks[item] if isinstance(item, str) else partial(self.checkpointed, item)
                output = step(*args, **kwargs)
                bare = output[0] if isinstance(output, tuple) and len(output) == 1 else output
                self.in_tuples.update([] if bare is output else _names([item])[-1:])
                args = (bare, *args[1:])
        finally:
            self.inside = before
        return output


def _names(run):
    """The blocks of a run, in order."""
$names
''')

PLAIN = {
    "imports": "from torch.utils.checkpoint import checkpoint",
    "checkpoint": "        return checkpoint(partial(self.compute, run), *args, use_reentrant=False, **kwargs)",
    "names": "    return [name for item in run for name in ([item] if isinstance(item, str) else _names(item))]",
}
SAVING = {
    "imports": "import torch\nfrom torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts",
    "checkpoint": """\
        run, save = run if isinstance(run, tuple) else (run, None)
        keeping = partial(create_selective_checkpoint_contexts, _overloads(KEPT[save])) if save else None
        options = {"context_fn": keeping} if save else {}
        return checkpoint(partial(self.compute, run), *args, use_reentrant=False, **options, **kwargs)""",
    "names": f"""\
    items = run[0] if isinstance(run, tuple) else run
    return [name for item in items for name in ([item] if isinstance(item, str) else _names(item))]
{OVERLOADS}""",
}

OFFLOADING = {  # what changes in the code above where inputs wait in host memory
    "return run.checkpointed(run.run, *": "return run.around(run.checkpointed, run.run, *",
    "        self.run, self.inside, self.in_tuples = run, False, set()\n": """\
        self.run, self.inside, self.in_tuples = run, False, set()
        after = FETCHED_AT.get(_names(run)[0])
        self.around = OffloadedInput(MEMORY, model.get_submodule(after), least=0) if after else _called
""",
    "\n\ndef _names(run):": """

def _called(checkpoint, *args, **kwargs):
    return checkpoint(*args, **kwargs)


def _names(run):""",
}

HUGGING_FACE = Template('''\
from transformers.modeling_layers import GradientCheckpointingLayer

$plan

def apply_plan(model):
    """Switch checkpointing on in these layers alone. A Trainer's activation_checkpointing=True would switch on all."""
$first    layers = {name: one for name, one in model.named_modules() if isinstance(one, GradientCheckpointingLayer)}
    others = [name for name in LAYERS if name not in layers]
    if others:
        raise ValueError(f"not layers of this model that have a switch of their own: {others}")
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for name, layer in layers.items():
        layer.gradient_checkpointing = name in LAYERS
''')

WRAPPERS = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)"""

FSDP = Template(f'''\
{WRAPPERS}

$plan

def apply_plan(model):
    """Wrap these modules, while they still have these names. The keys of the state dict stay."""
$first    chosen = {{model.get_submodule(name) for name in MODULES}}
    apply_activation_checkpointing(model, checkpoint_wrapper_fn=_wrapped, check_fn=lambda module: module in chosen)


def _wrapped(module):
    if getattr(module, "inplace", False):
        module.inplace = False  # it would write over what it is computed from again
    return checkpoint_wrapper(module)
''')

FSDP_SAVING = Template(f'''\
from functools import partial

import torch
{WRAPPERS}
from torch.utils.checkpoint import create_selective_checkpoint_contexts

$plan

def apply_plan(model):
    """Wrap these modules, while they still have these names. The keys of the state dict stay."""
$first    chosen = {{model.get_submodule(name): save for name, save in MODULES.items()}}
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=lambda module: _wrapped(module, chosen[module]),
        check_fn=lambda module: module in chosen,
    )


def _wrapped(module, save):
    if getattr(module, "inplace", False):
        module.inplace = False  # it would write over what it is computed from again
    if save is None:
        return checkpoint_wrapper(module)
    keeping = partial(create_selective_checkpoint_contexts, _overloads(KEPT[save]))
    return checkpoint_wrapper(module, context_fn=keeping)
{OVERLOADS}''')

REPAIRING = "    _repair_batchnorm(model)\n"
REPAIR = '''

def _repair_batchnorm(model):
    """Hold the running statistics and counts of BatchNorm wherever the backward computes it again."""
    for layer in model.modules():
        if getattr(layer, "track_running_stats", False):
            layer.register_forward_pre_hook(_hold)
            layer.register_forward_hook(_release, always_call=True)


def _hold(layer, _):
    import torch

    in_backward = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
    if in_backward and layer.training:
        layer.__dict__["_held"] = layer.momentum, layer.num_batches_tracked
        layer.momentum, layer.num_batches_tracked = 0.0, None


def _release(layer, *_):
    if "_held" in layer.__dict__:
        layer.momentum, layer.num_batches_tracked = layer.__dict__.pop("_held")
'''
