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

DRAWS = '''
from torch.utils._python_dispatch import TorchDispatchMode

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

HOST_MEMORY = """
from collections.abc import Callable
from typing import Any
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

"""

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
import torch

def _repair_batchnorm(model):
    """Hold the running statistics and counts of BatchNorm wherever the backward computes it again."""
    for layer in model.modules():
        if getattr(layer, "track_running_stats", False):
            layer.register_forward_pre_hook(_hold)
            layer.register_forward_hook(_release, always_call=True)


def _hold(layer, _):
    in_backward = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
    if in_backward and layer.training:
        layer.__dict__["_held"] = layer.momentum, layer.num_batches_tracked
        layer.momentum, layer.num_batches_tracked = 0.0, None


def _release(layer, *_):
    if "_held" in layer.__dict__:
        layer.momentum, layer.num_batches_tracked = layer.__dict__.pop("_held")
'''

CHUNK_LOSS = Template('''
from functools import partial
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only


HEADS = $heads  # whose logits are computed $rows rows at a time
POINTWISE = (  # what may be done with logits before cross entropy
    "float", "to", "type", "bfloat16", "half", "double", "div", "mul", "__truediv__", "__mul__", "__rmul__",
    "tanh", "add", "__add__",
)

def chunk_loss(model):
    """Put the heads off: cross entropy computes their logits and gradients part by part."""
    for name in HEADS:
        head = model.get_submodule(name)
        head.forward = partial(_Logits, head)


class _Logits(torch.Tensor):
    """Logits that cross entropy computes in parts; whatever else reads them computes them whole."""

    @staticmethod
    def __new__(cls, head, hidden, dtype=None, then=(), classes_first=False):
        kind, shape = hidden.device.type, (*hidden.shape[:-1], head.out_features)
        dtype = dtype or (torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype)
        shape = (shape[0], shape[2], shape[1]) if classes_first else shape
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)
        self.head, self.hidden, self.then, self.classes_first = head, hidden, then, classes_first
        return self

    @property
    def how(self):
        return self.head.weight, self.head.bias, self.then

    def whole(self):
        logits = _computed(self.hidden, *self.how)
        return logits.transpose(1, 2) if self.classes_first else logits

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name, kwargs = func.__name__, kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if name in ("__get__", "size", "dim", "numel", "is_floating_point", "__len__", "is_contiguous"):
                is_asked = getattr(getattr(func, "__self__", None), "__name__", "") == "requires_grad"
                return torch.is_grad_enabled() if is_asked else func(*args, **kwargs)
            made = _put_off(func, name, *args, **kwargs) if isinstance(args[0], cls) else None
        if made is None:
            args, kwargs = tree_map_only(cls, cls.whole, (args, kwargs))
            made = func(*args, **kwargs)
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, cls.whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def _computed(hidden, weight, bias, then):
    logits = F.linear(hidden, weight, bias)
    for func, args, kwargs in then:
        logits = func(logits, *args, **kwargs)
    return logits


def _put_off(func, name, own, *args, **kwargs):
    """What a function makes of logits without reading them; None if it must."""
    classes = own.head.out_features
    if name == "cross_entropy":
        return _in_parts(own, *args, **kwargs)
    if name in POINTWISE:
        per_row = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor) and one.ndim]
        if any(one.numel() != classes or one.shape[-1] != classes or own.classes_first for one in per_row):
            return None
        meta = tree_map_only(torch.Tensor, partial(torch.empty_like, device="meta"), (args, kwargs))
        dtype = func(torch.empty(1, dtype=own.dtype, device="meta"), *meta[0], **meta[1]).dtype
        return _Logits(own.head, own.hidden, dtype, (*own.then, (func, args, kwargs)), own.classes_first)
    hidden, classes_first = own.hidden, own.classes_first
    if name == "transpose" and own.ndim == 3 and {place % 3 for place in args} == {1, 2}:
        classes_first = not classes_first
    elif name in ("view", "reshape", "flatten", "__getitem__") and not classes_first:
        shape = func(torch.empty(own.shape, device="meta"), *args, **kwargs).shape
        if shape[-1:] != (classes,):
            return None
        hidden = hidden[args[0]] if name == "__getitem__" else hidden.reshape(*shape[:-1], hidden.shape[-1])
    elif name != "contiguous":
        return None
    return _Logits(own.head, hidden, own.dtype, own.then, classes_first)


def _in_parts(logits, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
              label_smoothing=0.0):
    is_flat = logits.classes_first or logits.ndim == 2
    if weight is not None or reduction == "none" or target.is_floating_point() or not is_flat:
        return None
    hidden, target = logits.hidden.flatten(0, -2), target.flatten()
$by$part''')
PART = """

def _summed(how, hidden, target, rows, **options):
    def part_of(how, values, labels):
        return F.cross_entropy(_computed(values, *how), labels, reduction="sum", **options)

    parts = zip(hidden.split(rows), target.split(rows))
    if not torch.is_grad_enabled():
        return torch.stack([part_of(how, *part) for part in parts]).sum()
    leaves = {
        one: one.detach().requires_grad_()  # whose hooks are for whole gradients
        for one in tree_leaves(how)
        if isinstance(one, torch.Tensor) and one.requires_grad
    }
    how = tree_map_only(torch.Tensor, lambda one: leaves.get(one, one), how)
    inputs = [hidden] if hidden.requires_grad else []
    of_hidden, summed, totals, start = [torch.empty_like(one) for one in inputs], [], [], 0
    for values, labels in parts:
        part = values.detach().requires_grad_(hidden.requires_grad)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            total = part_of(how, part, labels)
        one_thread = torch.autograd.set_multithreading_enabled(False)  # another would free the last ones later
        with torch.autocast(hidden.device.type, enabled=False), one_thread:
            gradients = torch.autograd.grad(total, [*([part] if inputs else []), *leaves.values()])
        for gradient in of_hidden:
            gradient[start : start + len(labels)] = gradients[0]
        own = gradients[len(inputs) :]
        summed = [one.add_(more) for one, more in zip(summed, own)] if summed else list(own)
        totals.append(total.detach())
        start += len(labels)
        del part, total, gradients, own  # before the next part's are made
    return _Known.apply(torch.stack(totals).sum(), [*of_hidden, *summed], *inputs, *leaves)


class _Known(torch.autograd.Function):
    # a sum whose gradients are known; the backward scales them, and can run once
    @staticmethod
    def forward(ctx, total, gradients, *leaves):
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx, factor):
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(gradient.mul_(factor) for gradient in gradients)
"""
BY_PARTS = Template("""\
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    total = _summed(logits.how, hidden, target, $rows, **options)
    return total / (target != ignore_index).sum() if reduction == "mean" else total
""")
BY_TORCH = Template("""\
    how = {"ignore_index": ignore_index, "reduction": reduction, "linear_bias": logits.head.bias}
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=$rows)
    return F.linear_cross_entropy(hidden, logits.head.weight, target, options=options, **how)
""")

ONE_BY_ONE = '''
from functools import partial
import torch

class OneByOne(torch.optim.Optimizer):
    """An optimizer of the same kind for each parameter; their groups are its own, as schedulers of the rate need."""

    def __init__(self, optimizer):
        groups = [(group, weight) for group in optimizer.param_groups for weight in group["params"]]
        self.parts = {
            weight: type(optimizer)([{**group, "params": [weight]}]) for group, weight in groups if weight.requires_grad
        }
        super().__init__(list(self.parts), {})
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    def step(self, closure=None):
        for weight, part in self.parts.items():
            if weight.grad is not None:
                part.step()
'''
BF16_STATE = '''

def _with_bf16_state(optimizer):
    """Between steps the state is bfloat16; each step computes in the type of its parameter."""
    for weight, part in optimizer.parts.items():
        part.register_step_pre_hook(partial(_cast, weight.dtype))
        part.register_step_post_hook(partial(_cast, torch.bfloat16))


def _cast(dtype, optimizer, args, kwargs):
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape and value.is_floating_point():
                state[name] = value.to(dtype)
'''
IN_BACKWARD = '''

def _step_in_backward(optimizer):
    """Each parameter steps as soon as its gradient is there: no accumulation, no clipping, no gradient scaler."""
    for weight in optimizer.parts:
        weight.register_post_accumulate_grad_hook(partial(_arrived, optimizer.parts[weight]))


def _arrived(optimizer, weight):
    optimizer.step()
    weight.grad = None
'''

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
        value, share = loss(model, part), number / sum(counts)
        weighted = value * share
        weighted.backward()
        own = value.detach() * share
        total = own if total is None else total + own
    return total
''')
