"""What is done with each operator of PyTorch on a GPU that computes nothing: which ones are followed, and how."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import torch

known: Any = import_module("gcprof_known")  # beside this file
UNSEEN = re.compile(  # views, memory without values, and kinds of tensors that have no values here
    r"alias|as_strided|detach|diagonal|empty\w*|new_empty\w*|expand|permute|_reshape_alias|select|set_|slice"
    r"|split\w*|squeeze|t|transpose|unbind|unfold|unsqueeze|view|view_as_\w+|_unsafe_view|record_stream|resize\w*"
    r"|\w*(?:sparse|quantize|mkldnn|nested|_jagged|cudnn_rnn|mps)\w*|_local_scalar_dense|_pin_memory|is_pinned"
)
FLOATING = re.compile(  # which make floating-point numbers alone, and write nothing; most of what a model runs
    r"\w+_backward|\w*convolution\w*|mm|addmm|bmm|baddbmm|native_layer_norm|native_group_norm|_fused_rms_norm"
    r"|_scaled_dot_product\w+|\w*attention\w*|_?(?:log_)?softmax|gelu|silu|relu|elu|leaky_relu|tanh|sigmoid|embedding"
    r"|max_pool\w+|avg_pool\w+|_?adaptive\w+|upsample\w+|native_dropout|nll_loss\w*|mse_loss|smooth_l1_loss|_to_copy_"
)
OVERWRITES = re.compile(r"(?:zero|fill|normal|uniform|random|bernoulli|exponential|log_normal|cauchy|geometric)_")
MADE = re.compile(r"(?:zeros|ones|full|rand|randn|randint)_like|new_(?:zeros|ones|full)")  # only shapes are read
FILLED = {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
SEEN_WITHIN = {  # what they call is followed: their sizes come of other operators
    "masked_select", "bincount", "repeat_interleave.Tensor", "is_nonzero", "nonzero_static", "masked_scatter_",
    "segment_reduce", "histc", "unique_dim_consecutive_",
}  # fmt: skip
INDEXED = {"index.Tensor", "index.Tensor_out", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index.Tensor"}
COUNTED = {  # of which PyTorch's own code reads the size of what it makes
    "nonzero", "_unique2", "_unique", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
COMPARES = {"equal", "allclose"}
COPIES = {"_to_copy", "copy_"}
LIFTED = "lift_fresh"  # of what `torch.tensor` makes, whose copying is hidden from all of this
CHOOSERS = {  # which make indices along a dimension, and where those are among the results
    "argmax": 0, "argmin": 0, "argsort": 0, "argsort.stable": 0, "topk": 1, "sort": 1, "sort.stable": 1, "max.dim": 1,
    "min.dim": 1, "median.dim": 1, "nanmedian.dim": 1, "mode": 1, "kthvalue": 1, "multinomial": 0,
}  # fmt: skip
MESSAGES = "c10d"
GATHERED = "_allgather_base_"


def names(*, is_whole: bool) -> dict[str, list[str]]:
    """Return the operators that are followed, by namespace; also those that only make floats if `is_whole`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found: dict[str, list[str]] = {"aten": [], MESSAGES: []}
    for whole in torch._C._dispatch_get_all_op_names():
        namespace, _, name = whole.partition("::")
        base = name.partition(".")[0]
        if namespace == MESSAGES and base not in ("monitored_barrier_", "barrier"):
            found[namespace].append(name)
        if (
            namespace != "aten"
            or UNSEEN.fullmatch(base)
            or UNSEEN.fullmatch(base.removesuffix("_"))  # in place: another view of the same memory
            or (has(whole, "CompositeImplicitAutograd") and name != LIFTED)
        ):
            continue
        if is_whole or not FLOATING.fullmatch(base) or name.endswith("out"):
            found[namespace].append(name)
    return found


class Plan:
    """What is known of an operator before it is called."""

    def __init__(self, name: str) -> None:
        self.namespace, _, self.name = name.partition("::")
        base, _, overload = self.name.partition(".")
        self.func: Any = getattr(getattr(getattr(torch.ops, self.namespace), base), overload or "default")
        schema = self.func._schema
        self.written = [
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.is_foreach = base.startswith(("_foreach", "_fused", "_amp_foreach"))
        self._dims = [(place, one.default_value) for place, one in enumerate(schema.arguments) if one.name == "dim"]
        self.is_random = torch.Tag.nondeterministic_seeded in self.func.tags
        self.is_pointwise = torch.Tag.pointwise in self.func.tags and not self.written
        self.takes_generator = any(argument.name == "generator" for argument in schema.arguments)
        self.joins = base in ("cat", "stack")
        self.is_filled = base in FILLED
        self.is_out = overload.endswith("out")
        self.is_made = bool(MADE.fullmatch(base))
        self.overwrites = bool(OVERWRITES.fullmatch(base)) or base == "normal_"
        self.chosen = CHOOSERS.get(self.name)
        self.is_sized = (
            self.name in SEEN_WITHIN or self.name in INDEXED or self.name in COUNTED or self.name in COMPARES
        )
        self.tensors = [place for place, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
        self.has_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)

    def dim(self, args: Any, kwargs: Any) -> int | None:
        """Return the dimension along which it is called; None for all of them, the last where it knows none."""
        place, default = self._dims[0] if self._dims else (len(args), -1)
        dim: int | None = kwargs.get("dim", args[place] if place < len(args) else default)
        return dim

    def reads_within(self, args: Any) -> bool:
        """Whether it calls others that read sizes: an index does where a mask is among its indices."""
        if self.name not in INDEXED:
            return True
        return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])

    def makes(self, args: Any, out: Any) -> bool:
        """Whether results are to be looked at: they are integers or booleans, or the first input is known."""
        if self.namespace == MESSAGES or self.name in COPIES:  # these to the host, too
            return True
        kind = type(out)
        made = out if kind is torch.Tensor else out[0] if kind in (tuple, list) and out else None
        if type(made) is not torch.Tensor or not made.is_cuda:
            return False
        if (
            self.chosen is not None
            or self.name == LIFTED
            or not self.has_tensors
            or self.is_made
            or known.is_discrete(made)
        ):
            return True
        for value in args:
            if type(value) is list and value:
                value = value[-1] if self.joins else value[0]
            if type(value) in known.TENSORS and value.is_cuda:
                return bool(value.numel() <= known.LIMIT and known.mark_of(value) is not None)
        return False
