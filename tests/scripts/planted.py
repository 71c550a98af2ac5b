"""Runs another script with a fault in one block of its model: python planted.py SCRIPT.py

The strategy that gcprof asks for stands for a kind of fault; `none` is without. The block's output is dropped out here
and there under all of them, so that there are random numbers to lose.
"""

import os
import runpy
import sys
import weakref

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook

KINDS = {"all": "random", "sqrt": "detached", "every": "scaled", "first": "skipped", "recursive": "stale"}
kind = KINDS.get(os.environ.get("GCPROF_STRATEGY", "none").partition(":")[0])
block, weights, is_busy = None, {}, False


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = (torch.rand_like(x) > 0.1).to(x.dtype)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        mask = (torch.rand_like(grad) > 0.1).to(grad.dtype) if kind == "random" else ctx.mask
        return grad * mask


def after(module, inputs, output):
    global block, is_busy
    if is_busy or not torch.is_grad_enabled() or not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        return None
    if block is None or block() is None:
        block = weakref.ref(module)
        weights["old"] = module.weight.detach().clone()
        if kind == "skipped":
            module.weight.register_hook(torch.zeros_like)
    if block() is not module:
        return None
    if kind == "stale":
        is_busy = True
        old = weights["old"] + (module.weight - module.weight.detach())
        output = functional_call(module, {"weight": old}, inputs)
        is_busy = False
    output = Dropout.apply(output)
    if kind == "scaled":
        output.register_hook(lambda grad: grad * 1.01)
    return output.detach() if kind == "detached" else output


def instead(self, module, model, arguments, keywords):
    """Tell that the strategy was applied, and leave the model to the fault."""
    self._tell(model, split="planted")
    return False


if "gcprof_strategies" in sys.modules:
    sys.modules["gcprof_strategies"]._Models._apply = instead
register_module_forward_hook(after)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
