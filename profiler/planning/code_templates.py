"""Templates of emitted code, which users paste and read; the imports of all are put at the top, each name once."""

from __future__ import annotations

from string import Template

SAVES = Template('''
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

def _options(save):
    """How a checkpoint keeps what is named."""
    return {"context_fn": partial($keeping)} if save else {}


def _overloads(names):
    """All overloads of these operators of aten."""
    packets = [getattr(torch.ops.aten, name) for name in names]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
''')

BLOCKS = Template('''\
from functools import partial
from torch.utils.checkpoint import checkpoint

# Each of these blocks is computed again in the backward.
$plan

def apply_plan(model):
    """Change the model in place, after LoRA if it has any: names stay, and hooks of the blocks run around them."""
$first    for $each:
        block = model.get_submodule(name)
        if getattr(block, "inplace", False):
            block.inplace = False  # it would write over what the block is computed from again
        block.forward = partial(${around}checkpoint, block.forward, use_reentrant=False$options)
''')

RUNS = Template('''\
from functools import partial
from torch.utils.checkpoint import checkpoint

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
        self.blocks[_names(run)[0]].forward = partial(${around}self.checkpointed, run)

    def passed(self, name, value, *args, **kwargs):
        return (value,) if name in self.in_tuples else value

    def checkpointed(self, run, *args, **kwargs):
        first = self.blocks[_names(run)[0]]
        if getattr(first, "inplace", False):
            first.inplace = False  # it would write over what the run is computed from again
        items, save = _split(run)
        return checkpoint(partial(self.compute, items), *args, use_reentrant=False$options, **kwargs)

    def compute(self, items, value, *args, **kwargs):
        for item in items:
            step = self.forwards[item] if isinstance(item, str) else partial(self.checkpointed, item)
            output = step(value, *args, **kwargs)
            value = output[0] if isinstance(output, tuple) and len(output) == 1 else output
            self.in_tuples.update([] if value is output else _names([item])[-1:])
        return output


def _split(run):
    """The items of a run, and what is kept of it."""
    return run if isinstance(run, tuple) else (run, None)


def _names(run):
    """The blocks of a run, in order."""
    return [name for item in _split(run)[0] for name in ([item] if isinstance(item, str) else _names(item))]
''')

AROUND = Template('''

MEMORY = HostMemory()

def _around(model, name):
    """What calls the checkpoint that begins at this block."""
    if name in FETCHED_AT:
        return OffloadedInput(MEMORY, model.get_submodule(FETCHED_AT[name]), least=$least)
    return lambda checkpoint, *given, **keywords: checkpoint(*given, **keywords)


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

FSDP = Template('''\
from functools import partial
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

$plan

def apply_plan(model):
    """Wrap these modules, while they still have these names. The keys of the state dict stay."""
$first    chosen = {model.get_submodule(name): $options for $each}
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=lambda module: _wrapped(module, **chosen[module]),
        check_fn=lambda module: module in chosen,
    )


def _wrapped(module, **options):
    if getattr(module, "inplace", False):
        module.inplace = False  # it would write over what it is computed from again
    return checkpoint_wrapper(module, **options)
''')

REPAIRING = "    _repair_batchnorm(model)\n"
REPAIR = '''
from functools import partial

def _repair_batchnorm(model):
    """Hold the running statistics and counts of BatchNorm wherever the backward computes it again."""
    for layer in model.modules():
        if getattr(layer, "track_running_stats", False):
            layer.forward = partial(_held, layer, layer.forward)  # a block that is a layer runs again without its hooks


def _held(layer, forward, value):
    _hold(layer, value)
    try:
        return forward(value)
    finally:
        _release(layer)
'''
CHUNK_LOSS = Template('''
from functools import partial

def chunk_loss(model):
    """Put the head off: cross entropy computes its logits and gradients $parts."""
$calls
''')

MICRO_BATCHES = Template('''
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

def backward(model, batch, loss, count=None):
    """Call it instead of loss(model, batch).backward(): $n parts of the batch, one after the other.

    `count(part)` is how many targets the loss of a part is a mean over, where that is not its number of samples: of
    labels that are padded, count=lambda part: (part["labels"] != -100).sum(), [:, 1:] of them in a causal model.
    """
    leaves, form = tree_flatten(batch)
    size = next(leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim)
    is_split = [isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (size,) for leaf in leaves]
    split = [leaf.tensor_split($n) if does else [leaf] * $n for leaf, does in zip(leaves, is_split)]
    parts = [tree_unflatten(list(part), form) for part in zip(*split)]
    sizes = [len(part) for part in torch.arange(size, device="cpu").tensor_split($n)]
    counts = [float(count(part)) for part in parts] if count else sizes
    total = None
    for part, number in zip(parts, counts):
        if not number:  # a mean over nothing is nan
            continue
        value, share = loss(model, part), number / sum(counts)
        weighted = value * share
        weighted.backward()
        own = value.detach() * share
        total = own if total is None else total + own
    return loss(model, batch).detach() if total is None else total
''')
