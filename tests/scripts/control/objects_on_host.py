"""Objects that ranks send to each other: what PyTorch computes of their sizes on the GPU is computed on the CPU.

`broadcast_object_list` and the like turn objects to tensors on the GPU, sum or compare their lengths there, and read
the result. All of it comes from the host, and what NCCL's stand-in carries is real, so each result can be: it is
written into the tensor that the GPU's operator made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAMES = (
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
    "send_object_list",
)  # fmt: skip


def begin() -> None:
    """Have the functions that send objects compute on the CPU, which changes no figure."""
    for name in NAMES:
        plain = getattr(distributed_c10d, name, None)
        if plain is not None:
            ours = _on_host(plain)
            setattr(distributed_c10d, name, ours)
            if getattr(torch.distributed, name, None) is plain:
                setattr(torch.distributed, name, ours)


def _on_host(plain: Callable[..., Any]) -> Callable[..., Any]:
    mode: Any = OnHost

    @wraps(plain)
    def send(*arguments: Any, **keywords: Any) -> Any:
        with mode():
            return plain(*arguments, **keywords)

    return send


class OnHost(TorchDispatchMode):
    """Computes what operators make of GPU tensors on the CPU, and puts it where the GPU would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        host = tree_map_only(torch.Tensor, torch.Tensor.cpu, args) if _computes(func, args) else None
        made = func(*args, **keywords)
        if host is not None and isinstance(made, torch.Tensor) and made.is_cuda:
            made.copy_(func(*host, **keywords))
        return made


def _computes(func: Any, args: Any) -> bool:
    """Whether an operator computes of GPU tensors a new one, or the elements of its first in place."""
    if func.namespace != "aten" or not any(isinstance(one, torch.Tensor) and one.is_cuda for one in tree_leaves(args)):
        return False
    schema = func._schema
    is_new = not any(value.alias_info for value in (*schema.arguments, *schema.returns))
    return is_new or (torch.Tag.pointwise in func.tags and func.overloadpacket.__name__.endswith("_"))
