"""Templates of the code of levers, which users paste and read."""

from __future__ import annotations

from string import Template

APPLY = '''

def apply_levers(model, optimizer):
    """Change the model in place; return the optimizer to use instead."""
'''

# The imports of all are put at the top, each name once.
CHUNK_LOSS = Template('''
from functools import partial
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only


HEADS = $heads  # whose logits are computed $rows rows at a time
POINTWISE = (  # what may be done with logits before cross entropy
    "float", "to", "type", "bfloat16", "half", "double", "div", "mul", "__truediv__", "__mul__", "__rmul__",
    "tanh", "add", "__add__",
)

def chunk_loss(model):
    """Put the heads off: cross entropy computes their logits in parts, each once more in the backward."""
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

    def compute(self, hidden):
        logits = F.linear(hidden, self.head.weight, self.head.bias)
        for func, args, kwargs in self.then:
            logits = func(logits, *args, **kwargs)
        return logits

    def whole(self):
        logits = self.compute(self.hidden)
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

def _part(logits, how, hidden, target):
    return F.cross_entropy(logits.compute(hidden), target, reduction="sum", **how)
"""
BY_PARTS = Template("""\
from torch.utils.checkpoint import checkpoint
    how = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    run = partial(checkpoint, partial(_part, logits, how), use_reentrant=False, preserve_rng_state=False)
    total = torch.stack([run(*part) for part in zip(hidden.split($rows), target.split($rows))]).sum()
    return total / (target != ignore_index).sum() if reduction == "mean" else total
""")
BY_TORCH = Template("""\
    how = {"ignore_index": ignore_index, "reduction": reduction, "linear_bias": logits.head.bias}
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=$rows)
    return F.linear_cross_entropy(hidden, logits.head.weight, target, options=options, **how)
""")

LIKE = '''

def _like(optimizer, **options):
    """A fresh optimizer, as if it had been made with these options too."""
    return type(optimizer)([{**group, **options} for group in optimizer.param_groups], **options)
'''
EIGHT_BIT = Template('''
import $library

def _in_8_bits(optimizer):
    """The same optimizer with a state of 8 bits."""
    taken, kind = ("params", "lr", "betas", "eps", "weight_decay"), f"{type(optimizer).__name__}8bit"
    groups = [{name: group[name] for name in taken} for group in optimizer.param_groups]
    return getattr($library, kind)(groups)
''')
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
