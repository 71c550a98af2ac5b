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

BLOCKS = Template('''\
from functools import partial

$imports

# Each of these blocks is computed again in the backward.
$plan

def apply_plan(model):
    """Change the model in place, after LoRA if it has any: names stay, and hooks of the blocks run around them."""
$first    for $each:
        block = model.get_submodule(name)
        if getattr(block, "inplace", False):
            block.inplace = False  # it would write over what the block is computed from again
$forward
''')

RUNS = Template('''\
from functools import partial

$imports

# Each list of blocks is computed again in the backward; a list within a list once more, during that.
$plan

def apply_plan(model):
    """Change the model in place, after LoRA if it has any: names stay, and hooks of the blocks run around them."""
$first    for run in PLAN:
        _Run(model, run)


class _Run:  # consecutive blocks: the forward of the first computes them all, the others pass it on
    def __init__(self, model, run):
        self.blocks, self.in_tuples = {name: model.get_submodule(name) for name in _names(run)}, set()
        self.forwards = {name: block.forward for name, block in self.blocks.items()}
        for name, block in self.blocks.items():
            block.forward = partial(self.passed, name)
        self.blocks[_names(run)[0]].forward = partial($around, run)

    def passed(self, name, value, *args, **kwargs):
        return (value,) if name in self.in_tuples else value

    def checkpointed(self, run, *args, **kwargs):
        first = self.blocks[_names(run)[0]]
        if getattr(first, "inplace", False):
            first.inplace = False  # it would write over what the run is computed from again
$checkpoint

    def compute(self, run, value, *args, **kwargs):
        for item in run:
            step = self.forwards[item] if isinstance(item, str) else partial(self.checkpointed, item)
            output = step(value, *args, **kwargs)
            value = output[0] if isinstance(output, tuple) and len(output) == 1 else output
            self.in_tuples.update([] if value is output else _names([item])[-1:])
        return output


def _names(run):
    """The blocks of a run, in order."""
$names
''')

KEEPING = "partial(create_selective_checkpoint_contexts, _overloads(KEPT[save]))"
PLAIN = {
    "imports": "from torch.utils.checkpoint import checkpoint",
    "checkpoint": "        return checkpoint(partial(self.compute, run), *args, use_reentrant=False, **kwargs)",
    "names": "    return [name for item in run for name in ([item] if isinstance(item, str) else _names(item))]",
    "each": "name in BLOCKS",
    "under": "partial(checkpoint, use_reentrant=False)",
}
SAVING = {
    "imports": "import torch\nfrom torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts",
    "checkpoint": f"""\
        run, save = run if isinstance(run, tuple) else (run, None)
        options = {{"context_fn": {KEEPING}}} if save else {{}}
        return checkpoint(partial(self.compute, run), *args, use_reentrant=False, **options, **kwargs)""",
    "names": f"""\
    items = run[0] if isinstance(run, tuple) else run
    return [name for item in items for name in ([item] if isinstance(item, str) else _names(item))]
{OVERLOADS}""",
    "each": "name, save in BLOCKS.items()",
    "under": f"""partial(checkpoint, use_reentrant=False)
        if save:
            under = partial(under, context_fn={KEEPING})""",
}

OFFLOADED = Template('''

STREAMS = {}  # by device, that of its copies


def _around(model, name):
    """What calls the checkpoint that begins at this block."""
    return _Offloaded(model.get_submodule(FETCHED_AT[name])) if name in FETCHED_AT else _called


def _called(checkpoint, function, *args, **kwargs):
    return checkpoint(function, *args, **kwargs)


class _Offloaded:
    """Calls a checkpoint whose input waits in pinned host memory until the other block's backward."""

    def __init__(self, fetched_at):
        self.sent = []
        fetched_at.register_forward_hook(self.watch)

    def __call__(self, checkpoint, function, given, *args, **kwargs):
        sent, is_sent = [], torch.is_grad_enabled() and not given.is_leaf and given.nbytes >= $least
        place = given.data_ptr(), given.shape  # pack must not hold the tensor: it lives as long as the graph

        def pack(saved):
            if not is_sent or sent or (saved.data_ptr(), saved.shape) != place:
                return saved
            sent.append(_Sent(saved))
            return sent[0]

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.back() if type(one) is _Sent else one):
            output = checkpoint(function, given, *args, **kwargs)
        for one in sent:
            one.land()
            self.sent = sent
        return output

    def watch(self, block, args, output):
        waiting, output = self.sent, output[0] if isinstance(output, tuple) else output
        if waiting and output.requires_grad and torch._C._current_graph_task_id() == -1:  # not in a recompute
            self.sent = []
            output.register_hook(lambda gradient: waiting.pop().fetch() if waiting else None)


class _Sent:
    def __init__(self, tensor):
        self.tensor, self.device, self.fetched = tensor.detach(), tensor.device, None
        self.host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self.landed = _copy(self.host, self.tensor, tensor.device)

    def land(self):
        """Free the device's memory, once the copy has ended."""
        _wait(self.landed, self.device)
        self.tensor = None

    def fetch(self):
        if self.fetched is None:
            made = torch.empty_like(self.host, device=self.device)
            self.fetched = made, _copy(made, self.host, self.device)

    def back(self):
        self.fetch()
        (made, event), self.fetched = self.fetched, None
        _wait(event, self.device)
        return made


def _copy(to, source, device):
    """Begin a copy after all that was computed until now; return the event of its end."""
    if device.type == "cpu":
        to.copy_(source)
        return None
    if device not in STREAMS:
        STREAMS[device] = torch.cuda.Stream(device)
    STREAMS[device].wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(STREAMS[device]):
        to.copy_(source, non_blocking=True)
    return STREAMS[device].record_event()


def _wait(event, device):
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)
''')

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
