"""The user's own training step, from a function that need not import gcprof.

Or from another process, as `gcprof.predict(model)` sends it: tensors arrive as shapes, strides and shared storages; the
values of small ones and of masks come too.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from profiler.core import catalogue
from profiler.core.errors import Invalid, exited
from profiler.training.optimizers import held_by
from profiler.training.workload import Workload

KEYS = ("module", "batch", "loss", "optimizer")
BY_FACTORY = ": return it as third value"
SENT = f"{__name__}:unpack"  # the name of a model from another process, as that of a factory of the user's
SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {  # what a step's memory depends on, by name
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    **{
        f"{kind} attention": (
            getattr(torch.backends.cuda, f"{kind}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{kind}_sdp"),
        )
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    },
}


def build(name: str, /, batch_size: int | None = None, **options: Any) -> Workload:
    """Your own model: a function in your file that returns a module and a batch, optionally a loss and an optimizer.

    It returns them as a tuple or as a dict with these keys. Without a loss, the module is called with the whole batch
    (a dict as keywords, a tuple as arguments, anything else as it is) and its output holds the loss: a scalar, an
    attribute or key `loss`, or the first of a tuple. With a loss, a batch of two is inputs and targets, and the loss is
    called as loss(output, targets); any other batch goes to the module whole, and the loss is called as
    loss(output, batch), or as loss(output) where it takes one argument. An optimizer is a function of the parameters,
    or an optimizer. Raises TypeError for anything else and for a batch that the module does not take, Exited where the
    file calls sys.exit, and the step Invalid where there is no loss.
    """
    if batch_size is not None:
        options["batch_size"] = batch_size
    words = sys.argv
    sys.argv = [str(catalogue.place(name))]  # as a script that is run without arguments
    try:
        function = _function(name)
        try:
            if signature := _signature(function):
                signature.bind(**options)
        except TypeError as error:
            hint = "give every parameter a default, or its value as in file.py:make:depth=2"
            raise TypeError(f"the factory is called by its options alone: {error}; {hint}") from None
        return as_workload(function(**options))
    except SystemExit as error:
        raise exited(error) from None
    finally:
        sys.argv = words


def as_workload(returned: Any) -> Workload:
    """Convert what a user's function returned to a Workload."""
    if isinstance(returned, Workload):
        return msgspec.structs.replace(returned, loss_modules=_modules(returned.loss))
    parts = _parts(returned)
    _register_dataclasses(parts["batch"])
    loss, optimizer = parts.get("loss"), parts.get("optimizer")
    is_pair = loss is not None and _is_pair(parts["batch"])
    inputs = parts["batch"][0] if is_pair else parts["batch"]
    refuse_other_arguments(parts["module"], inputs, has_loss=loss is not None)
    return Workload(
        module=parts["module"],
        batch=parts["batch"],
        loss=_loss_of_output if loss is None else _loss_by(loss, parts["batch"]),
        optimizer=optimizer,
        data="the user's own",
        loss_modules=_modules(loss),
    )


def _modules(loss: Any) -> tuple[nn.Module, ...]:
    """Return the modules that a loss is or refers to, perhaps the model among them."""
    held = [loss, *(held_by(loss) if callable(loss) else ())]
    return tuple(dict.fromkeys(part for part in held if isinstance(part, nn.Module)))


def refuse_other_arguments(module: nn.Module, batch: Any, *, has_loss: bool = False) -> None:
    """Raise TypeError if the batch is a whole dataset, or if the module's forward cannot be called with it."""
    if isinstance(batch, (DataLoader, Dataset)):
        one = "next(iter(loader))" if isinstance(batch, DataLoader) else "next(iter(DataLoader(dataset, batch_size=8)))"
        raise TypeError(f"the batch is a {type(batch).__name__}, not tensors: return one batch, {one}")
    signature = _signature(module.forward)
    is_wrapped = module._forward_pre_hooks or type(module).__call__ is not nn.Module.__call__  # with other arguments
    if signature is None or is_wrapped:
        return
    try:
        call(signature.bind, batch)  # type: ignore[arg-type]  # called as a module is
    except TypeError as error:
        keys = f" with the keys {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        hint = f"it takes {', '.join(signature.parameters) or 'nothing'}"
        if _is_pair(batch) and not has_loss:
            hint += f"; a batch (inputs, targets) needs a loss, a function of (output, targets){BY_FACTORY}"
        if has_loss and isinstance(batch, (tuple, list)) and len(batch) == len(signature.parameters) + 1:
            names = ", ".join(signature.parameters)
            hint += f"; with a loss the batch is (inputs, targets): return (({names}), targets)"
        name = type(module).__name__
        raise TypeError(f"the forward of {name} does not take the batch{keys}: {error}; {hint}") from None


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def _register_dataclasses(batch: Any) -> None:
    """Register the types of the dataclasses in a batch, at any depth, so that their tensors are moved and counted."""

    def taken_apart(value: Any) -> tuple[list[Any], tuple[str, ...]]:  # its fields (also slots) and other attributes
        fields = (field.name for field in dataclasses.fields(value) if hasattr(value, field.name))
        names = tuple(dict.fromkeys((*fields, *getattr(value, "__dict__", ()))))
        return [getattr(value, name) for name in names], names

    plain = (type, nn.Module, torch.Tensor)
    leaves = pytree.tree_leaves(batch)
    while kinds := {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, plain)}:
        for kind in kinds:
            pytree.register_pytree_node(kind, taken_apart, partial(_put_together, kind))
        leaves = pytree.tree_leaves(batch)


def _put_together(kind: type, values: Iterable[Any], names: tuple[str, ...]) -> Any:
    """Rebuild a dataclass from its values without running __init__, since computed attributes are among them."""
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)  # a frozen dataclass refuses setattr
    return made


def _parts(returned: Any) -> dict[str, Any]:
    """Return the parts that the factory returned, by name. Raises TypeError for any other return value."""
    is_tuple = isinstance(returned, (tuple, list)) and len(returned) <= len(KEYS)
    parts = dict(zip(KEYS, returned, strict=False)) if is_tuple else returned

    def is_part(name: str, part: Any) -> bool:  # of a type that its name allows
        if name == "module":
            return isinstance(part, nn.Module)
        is_optimizer = name == "optimizer" and isinstance(part, torch.optim.Optimizer)
        return name == "batch" or part is None or is_optimizer or callable(part)

    if isinstance(parts, Mapping) and not parts.keys() - set(KEYS):
        if "batch" in parts and all(is_part(name, part) for name, part in parts.items()):
            return dict(parts)
        parts = [type(part).__name__ for part in parts.values()]
    what = f"({', '.join(parts)})" if isinstance(parts, list) else type(returned).__name__
    if isinstance(parts, Mapping):
        what = f"a dict with the keys {', '.join(map(str, parts))}"
    expected = "(module, batch[, loss[, optimizer]]), or a dict with the keys module, batch, loss, optimizer"
    raise TypeError(f"the factory returned {what}: return {expected}")


def _loss_of_output(module: nn.Module, batch: Any) -> torch.Tensor:
    output = call(module, batch)
    named_loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if named_loss is None and isinstance(output, (tuple, list)) and output:
        scalars = (part for part in output if isinstance(part, torch.Tensor) and part.numel() == 1)
        named_loss = next(scalars, output[0])
    loss = output if named_loss is None else named_loss
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss
    what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
    raise Invalid(f"the module's output holds no loss but {what}: return a loss as the factory's third value")


def _loss_by(loss: Callable[..., Any], batch: Any) -> Callable[[nn.Module, Any], torch.Tensor]:
    """Return a workload's loss that calls the user's with (output, targets), (output, batch) or (output)."""
    if _is_pair(batch):
        return lambda module, pair: loss(call(module, pair[0]), pair[1])
    signature = _signature(loss)
    required = [
        one
        for one in (signature.parameters.values() if signature else ())
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) == 1:
        return lambda module, whole: loss(call(module, whole))
    return lambda module, whole: loss(call(module, whole), whole)


def call(module: nn.Module, batch: Any) -> Any:
    """Call the module with the batch: a dict as keywords, a tuple as arguments, anything else as it is."""
    if isinstance(batch, Mapping):
        return module(**batch)
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return module(*batch)
    return module(batch)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:  # written in C
        return None


def _function(name: str) -> Callable[..., Any]:
    """Import the user's function as Python would, with its file's folder (the current one for a module) on the path."""
    place, _, attribute = name.rpartition(":")
    path, is_file = Path(place).resolve(), place.endswith(".py")
    folder = str(path.parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_file:
        return getattr(importlib.import_module(place), attribute)  # type: ignore[no-any-return]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickling look there
    spec.loader.exec_module(module)
    return getattr(module, attribute)  # type: ignore[no-any-return]


def unpack(path: str) -> Any:
    """Return (module, batch[, loss[, optimizer]]) of the file, on the default device, or what its factory returns."""
    paths, switches, made = pickle.loads(Path(path).read_bytes())
    sys.path[:] = paths
    for name, value in switches.items():
        read, write = SWITCHES[name]
        if read() != value:
            write(value)
    parts = pickle.loads(made)
    return parts if isinstance(parts, tuple) else parts()


class Storage:
    """Memory that tensors may share, of a number of bytes; made when the first tensor of it is."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._made: torch.UntypedStorage | None = None

    def made(self) -> torch.UntypedStorage:
        if self._made is None:
            self._made = torch.empty(self.nbytes, dtype=torch.uint8).untyped_storage()
        return self._made


def tensor(  # noqa: PLR0917  as pickle calls it
    storage: Storage,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    is_parameter: bool,
    values: bytes | None,
) -> torch.Tensor:
    """Return a tensor in the storage; what is read of it where nothing is computed are its values, if there are any."""
    made = torch.empty(0, dtype=dtype).set_(storage.made(), offset, shape, strides)
    if values:
        known = torch.frombuffer(bytearray(values), dtype=dtype).reshape(shape)
        if made.is_cpu:
            made.copy_(known)
    made = nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)
    if values and not made.is_cpu:
        made.known_value = known  # type: ignore[attr-defined]
    return made


def set_state(made: torch.Tensor, state: tuple[Mapping[str, Any], Iterable[Any], Iterable[Any]]) -> None:
    """Give a tensor its attributes, its hooks, and those after its gradient has been accumulated."""
    attributes, hooks, after = state
    made.__dict__.update(attributes)
    for hook in hooks:
        made.register_hook(hook)
    for hook in after:
        made.register_post_accumulate_grad_hook(hook)


def generator(state: torch.Tensor) -> torch.Generator:
    """Return a generator on the CPU with that state."""
    return torch.Generator("cpu").set_state(state.cpu())
