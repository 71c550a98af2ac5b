"""One traced step on any device: its operators, phases, modules, gradients and storages, made into a Trace."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import torch
from msgspec.structs import replace
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from profiler.core.errors import Unsupported, is_ours
from profiler.core.own_thread import replaced
from profiler.core.trace_data import Allocation, Call, Operator, Save, Trace, recompute_ends
from profiler.training.called_blocks import CalledBlock, running_name
from profiler.training.optimizers import between_steps
from profiler.training.workload import Workload, loss_of, tensors

CHECKPOINT = "torch.utils.checkpoint"  # the module whose hooks are subclasses and rerun the model's own code
INNER_BACKWARD = "the forward runs a backward of its own: where checkpoints recompute in it is not known"
OWN_HOOKS = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), so that the bytes of other "
    "strategies cannot be derived"
)
Held = dict[int, tuple[str, str]]  # by the address of a storage: its category, and the module that it belongs to

out_of_place_linear = F.linear
_ADDS_IN_PLACE: ContextVar[bool] = ContextVar("_ADDS_IN_PLACE", default=False)

aten = torch.ops.aten
SUM = aten.add.Tensor
TENSOR_HOLDERS, STORAGE_HOLDERS = 5, 2  # reference counts if only autograd holds it, those of this call included
NODES = {  # by operator: backward nodes that have it in an in-place form
    aten.index_put.default: ("IndexBackward0",),
    aten.scatter_add.default: ("GatherBackward0",),
    aten.scatter.src: (
        *("SortBackward0", "SortBackward1", "TopkBackward0", "MaxBackward0", "MinBackward0"),
        *("KthvalueBackward0", "MedianBackward1", "ModeBackward0"),
    ),
    aten.index_add.default: ("IndexSelectBackward0",),
    aten.masked_fill.Scalar: ("MaximumBackward0", "MinimumBackward0"),
    aten.sub.Tensor: ("BinaryCrossEntropyWithLogitsBackward0",),
    aten.mul.Tensor: ("BinaryCrossEntropyWithLogitsBackward0",),
}
ADDING = ("VarMeanBackward0", "StdMeanBackward0")  # nodes whose formulas themselves add, out of place


class Assumed(NamedTuple):
    """What a trace assumes because only real data would decide it, and what makes its bytes others than a GPU's."""

    num_guesses: int = 0  # values that were guessed: `all()` as true, other tests as false, floats as 0
    routing: str | None = None  # the assumed routing of tokens, if sizes in the step depend on it
    is_unfused: bool = False  # whether code that is compiled ran as it was written, without the kernels that fuse it
    remarks: tuple[str, ...] = ()  # of a step on a device, in words


class BlockLife:
    """The lifetime of one block; `born` and `died` are numbers of operators, as in an Allocation."""

    __slots__ = ("address", "born", "died", "is_within", "line", "nbytes", "unsplit", "watch")

    def __init__(self, address: int, nbytes: int, born: int, line: str = "", unsplit: int = 0) -> None:
        self.address, self.nbytes, self.born, self.line = address, nbytes, born, line
        self.unsplit = unsplit  # beside `nbytes`: the part that was not requested
        self.died: int | None = None  # None if it outlives the step
        self.is_within = False  # whether its operator gave it back before it ended
        self.watch: Any = None


class BlockLives:
    """All blocks of a step, in the order in which they were given, those in use before it first."""

    def __init__(self) -> None:
        self.lives: list[BlockLife] = []
        self.here: dict[int, BlockLife] = {}  # those in use, by address
        self.made: dict[int, list[BlockLife]] = defaultdict(list)  # by operator
        self._at: dict[int, list[BlockLife]] = defaultdict(list)

    def give(self, life: BlockLife) -> None:
        self.lives.append(life)
        self.made[life.born].append(life)
        self.here[life.address] = life
        self._at[life.address].append(life)

    def at(self, address: int, number: int) -> BlockLife | None:
        """Return the block that was in use at an address after an operator."""
        lives = (life for life in reversed(self._at.get(address, ())) if life.born <= number)
        return next((life for life in lives if life.died is None or life.died >= number), None)


class Saved:
    """One tensor that autograd saves: its storages, and the numbers of operators before it was packed and unpacked."""

    __slots__ = ("packed", "storages", "unpacked")

    def __init__(self, storages: list[int], packed: int) -> None:
        self.storages, self.packed = storages, packed
        self.unpacked: int | None = None  # None until the backward does


class StepTracer(TorchDispatchMode):
    """Dispatch mode that notes the operators of a step; which blocks these are given, its subclasses know.

    In phase `backward`, operators with gradients enabled are recomputes: autograd itself disables gradients.
    `with_modules` runs Python at each module's call, which must be false where compiled code does not allow it. With
    `drops`, autograd is given nothing to keep, as in a checkpoint: no backward can follow.
    """

    patched: ClassVar[Callable[..., AbstractContextManager[Any]]] = replaced  # in all threads that a backward runs in
    saved_elsewhere: ClassVar[str]  # the command that runs a model with hooks of its own

    kind: str  # of the device whose allocator gives the blocks
    blocks: BlockLives  # of what has been followed
    uses_host = False  # whether it has moved something to the host and back

    def __init__(
        self, module: nn.Module, *, with_saves: bool = False, drops: bool = False, with_modules: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self.marks: list[tuple[str, int]] = []
        self.calls: list[Call] = []  # with addresses of storages in place of indices
        self.saved: list[Saved] = []
        self.arrived: list[tuple[int, str, list[int]]] = []  # gradients: operators before, their module, storages
        self.phase = "before"
        self._with_saves, self._with_modules, self._drops = with_saves or drops, with_modules, drops
        self._names = {id(child): name for name, child in reversed(list(module.named_modules()))}
        self._owners = {id(one): name.rpartition(".")[0] for name, one in module.named_parameters()}
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._stack, self._blocks = [""], list[CalledBlock]()  # running modules and calls, the innermost last
        self._made: dict[tuple[int, int], tuple[str, int]] = {}  # by thread and node: module and operator that made it
        self._home = threading.get_ident()
        self._task: int | None = None  # of the backward that the step itself runs

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # compiled code stays compiled, and asking takes 10 us a call

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # it sees what compiled code runs, not how it is compiled

    def follow(self) -> AbstractContextManager[Any]:
        """Note what runs within."""
        raise NotImplementedError

    def storages(self, tree: Any) -> list[int]:
        """Return the addresses of the device's storages of all tensors in any nesting."""
        raise NotImplementedError

    def held(self, workload: Workload, optimizer: torch.optim.Optimizer) -> Held:
        """Return the storages that live between two steps."""
        held: Held = {}
        for tree, category, owner in between_steps(workload, optimizer):
            for address in self.storages(self.own(tree, category)):
                held.setdefault(address, (category, owner))
        return held

    def own(self, tree: Any, category: str) -> Any:
        """Return what of a nesting is on the device; called for all that lives between two steps."""
        return tree

    def follow_dropping(self, workload: Workload) -> Self:
        """Follow a forward of which autograd keeps nothing: a block lives as long as the model's own code holds it."""
        with self.follow():
            self.mark("forward")
            loss = loss_of(workload)
        del loss  # a step holds it, too
        return self

    def trace(self, before: Held, after: Held, dropped: StepTracer | None = None, *, of_call: bool = False) -> Trace:
        """Return a followed step as data; `before` and `after` it, these storages lived.

        `dropped` followed its forward, or with `of_call` a call of its module, without what autograd keeps. Raises
        Unsupported if that ran other operators.
        """
        step = _Step(self, before, after)
        let_go = step.let_go(dropped, of_call=of_call) if dropped else {}
        return Trace(
            allocations=tuple(step.allocation(life, let_go.get(id(life)), dropped is not None) for life in step.lives),
            operators=tuple(self.operators),
            marks=tuple(self.marks),
            device=self.kind,
            uses_host=self.uses_host,
            saves=tuple(
                Save(next(iter(step.found(one.storages, one.packed)), None), one.packed, one.unpacked)
                for one in self.saved
            ),
            calls=tuple(
                replace(one, inputs=step.found(one.inputs, one.before), outputs=step.found(one.outputs, one.last))
                for one in self.calls
            ),
        )

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        self.phase, self._task = phase, None
        self.marks.append((phase, len(self.operators)))

    @property
    def module(self) -> str:
        """The full name of the running module; empty outside of all modules."""
        return self._stack[-1]

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Note which modules run within, the gradients that arrive and, if asked for, what autograd saves."""
        enter = saved_tensors_hooks.__enter__

        def arrive(parameter: nn.Parameter) -> None:
            storages, owner = self.storages(parameter.grad), self._owners[id(parameter)]
            self.arrived.append((len(self.operators), owner, storages))

        def pack(tensor: torch.Tensor) -> tuple[Saved, torch.Tensor | None]:
            saved = Saved(self.storages(tensor), len(self.operators))
            self.saved.append(saved)
            return saved, None if self._drops else tensor  # itself, so that memory is as without hooks

        def unpack(packed: tuple[Saved, torch.Tensor | None]) -> torch.Tensor:
            saved, tensor = packed
            if tensor is None:
                raise Unsupported(INNER_BACKWARD)
            if saved.unpacked is None:
                saved.unpacked = len(self.operators)
            return tensor

        def entered(hooks: Any) -> Any:
            if not are_known(hooks):  # they would see what autograd saves first
                raise Unsupported(f"{OWN_HOOKS}; {self.saved_elsewhere} for each strategy")
            return enter(hooks)

        call: Callable[..., Any] = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            name = running_name(module, self._names, self._blocks)
            self._stack.append(name or self._stack[-1])
            self._blocks += [module] if isinstance(module, CalledBlock) else []
            is_noted = self.phase == "forward" and name is not None
            given = tuple(self.storages((args, kwargs))) if is_noted else ()
            before, first = len(self.operators), len(self.saved)
            try:
                out = call(module, *args, **kwargs)
            finally:
                self._stack.pop()
                del self._blocks[len(self._blocks) - isinstance(module, CalledBlock) :]
            if is_noted:
                saves, made = (first, len(self.saved)), tuple(self.storages(out))
                self.calls.append(Call(name or "", before, len(self.operators), saves, given, made))
            return out

        with ExitStack() as stack:
            for parameter in self._trained:
                stack.enter_context(parameter.register_post_accumulate_grad_hook(arrive))
            if self._with_modules:
                stack.enter_context(type(self).patched(nn.Module, __call__=called))
            if self._with_saves:
                stack.enter_context(saved_tensors_hooks(pack, unpack))
                stack.enter_context(replaced(saved_tensors_hooks, __enter__=entered))
            yield

    def place(self, number: int) -> tuple[str, str, int]:
        """Return the phase, the module, and the operator whose backward it is, of the operator of this number."""
        node: Any = torch._C._current_autograd_node() if self.phase == "backward" else None
        task = torch._C._current_graph_task_id() if self.phase == "backward" else -1
        is_recompute = task != -1 and torch.is_grad_enabled()
        self._task = task if self._task is None and task != -1 else self._task
        if self.phase == "forward" or is_recompute:
            made = threading.get_ident(), torch._C._autograd._get_sequence_nr() - 1  # each thread has its own numbers
            self._made.setdefault(made, (self._stack[-1], number))
            return "recompute" if is_recompute else self.phase, self._stack[-1], 0
        variable = getattr(node, "variable", None)  # of AccumulateGrad
        if node is None or variable is not None:
            return self.phase, self._owners.get(id(variable), ""), 0
        thread = self._home if task == self._task else threading.get_ident()  # a backward within a recompute
        return self.phase, *self._made.get((thread, node._sequence_nr()), ("", 0))


def are_known(hooks: Any) -> bool:
    """Whether hooks on saved tensors are those of PyTorch's checkpoints, or gcprof's own."""
    code = getattr(hooks.pack_hook, "__code__", None)
    return type(hooks).__module__ == CHECKPOINT or bool(code and is_ours(code.co_filename))


def plain_tensors(tree: Any) -> list[torch.Tensor]:
    """Return all tensors in any nesting, but for those that torch.func wraps, which have no storages."""
    return [tensor for tensor in tensors(tree) if not torch._C._functorch.is_functorch_wrapped_tensor(tensor)]


class _Step:
    """Looks up what a tracer has noted."""

    def __init__(self, tracer: StepTracer, before: Held, after: Held) -> None:
        self._tracer, self._before, self._after = tracer, before, after
        self._operators, self._last = tracer.operators, len(tracer.operators)
        self._blocks = tracer.blocks
        self.lives = [life for life in self._blocks.lives if not life.is_within and life.born <= self._last]
        self._places = {id(life): place for place, life in enumerate(self.lives)}
        spans = pairwise(tracer.marks)
        self._forwards = [(before, last) for (phase, before), (_, last) in spans if phase == "forward"]
        self._recompute_ends = recompute_ends(tracer.operators)
        arrived = ((self._blocks.at(address, at), owner) for at, owner, own in tracer.arrived for address in own)
        self._gradients = {id(life): owner for life, owner in arrived if life is not None}

    def allocation(self, life: BlockLife, let_go: int | None, has_let_go: bool) -> Allocation:
        died = self._last if life.died is None else max(life.born - 1, life.died)
        made = self._operators[life.born - 1] if life.born else Operator("", "", "before")
        category, owner = self._category(life, made)
        return Allocation(
            life.nbytes + life.unsplit,
            life.born,
            died,
            made.name,
            owner or made.module,
            made.phase,
            category,
            (died if let_go is None else let_go) if has_let_go else None,
            unsplit=life.unsplit,
            line=life.line,
        )

    def _category(self, life: BlockLife, made: Operator) -> tuple[str, str]:
        """Return the category and the owning module; "" if that is the module that allocated it."""
        if not life.born:
            return self._before.get(life.address, ("inputs", ""))
        if id(life) in self._gradients:
            return "gradients", self._gradients[id(life)]
        if life.died is None and life.address in self._after:
            return self._after[life.address]
        if made.phase == "forward":
            end = next(last for before, last in self._forwards if before < life.born <= last)
            return "saved" if life.died is None or life.died > end else "temporaries", ""
        is_kept = life.died is None or life.died > self._recompute_ends[life.born]
        return "recomputed" if made.phase == "recompute" and is_kept else "temporaries", ""

    def found(self, addresses: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the places of the blocks that were in use at these addresses after an operator."""
        lives = (self._blocks.at(address, number) for address in addresses)
        return tuple(self._places[id(life)] for life in lives if life is not None and id(life) in self._places)

    def let_go(self, dropped: StepTracer, *, of_call: bool) -> dict[int, int]:
        """Return the last operator before only autograd holds a block of a forward, from a forward that dropped all."""
        blocks, ((first, last), *_) = dropped.blocks, _calls(dropped) if of_call else [(0, len(dropped.operators))]
        names = [operator.name for operator in dropped.operators[first:last]]
        let_go = {}
        for before, end in _calls(self._tracer) if of_call else self._forwards:
            if [operator.name for operator in self._operators[before:end]] != names:
                raise Unsupported("the model's next forward runs other operators: what each block holds is not known")
            for number in range(1, len(names) + 1):
                for own, other in zip(self._blocks.made[before + number], blocks.made[first + number], strict=False):
                    if other.died is not None:
                        let_go[id(own)] = before + other.died - first
        return let_go


def _calls(tracer: StepTracer) -> list[tuple[int, int]]:
    """Return the numbers of operators around each call of the whole module."""
    return [(call.before, call.last) for call in tracer.calls if not call.module]


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Add the bias in place if the product does not include it (aten/src/ATen/native/Linear.cpp).

    Not under a dispatch mode that a plain step has, too, as that of selective checkpoints.
    """
    is_plain = all(type(mode).__module__.startswith("profiler.") for mode in _get_current_dispatch_mode_stack())
    token = _ADDS_IN_PLACE.set(is_plain)
    try:
        return out_of_place_linear(input, weight, bias)
    finally:
        _ADDS_IN_PLACE.reset(token)


def is_sum_in_place(func: Any, args: Any) -> bool:
    """Whether this is a sum to write in place; its result is an alias of the first term."""
    return func is SUM and _ADDS_IN_PLACE.get()


def is_in_place(func: Any, args: Any) -> bool:
    """Whether autograd would write to the first argument if it were not fake; it then has the result's shape.

    It treats fake tensors as subclasses, as it does all under a dispatch mode: its formulas then are out of place
    (`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp), and so is the sum of gradients of a tensor
    that was used more than once (torch/csrc/autograd/input_buffer.cpp). False if gradients are enabled: the backward
    itself is differentiated, or this is a recompute, not a formula.
    """
    if (func is not SUM and func not in NODES) or torch.is_grad_enabled():
        return False
    node = torch._C._current_autograd_node()
    if node is None:
        return False
    if func is SUM:
        adds_itself = isinstance(node, BackwardCFunction) or node.name() in ADDING
        return not adds_itself and _is_sum(*args)
    written, factor = args[:2]  # `pos_weight`, which is multiplied by the target, may be smaller than the result
    is_factor = isinstance(factor, torch.Tensor) and factor.is_floating_point()
    is_as_large = not is_factor or torch.broadcast_shapes(written.shape, factor.shape) == written.shape
    return node.name() in NODES[func] and is_as_large


def _is_sum(first: torch.Tensor, second: Any) -> bool:
    """Whether this sums two gradients, of which only autograd holds the first, without overlapping elements."""
    if not isinstance(second, torch.Tensor) or (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    num_holders = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    return first._use_count() <= TENSOR_HOLDERS and num_holders <= STORAGE_HOLDERS and all(first.stride())
