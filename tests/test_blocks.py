"""Blocks are found in the structure of a model, and shown."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from profiler.core.errors import Unsupported
from profiler.training.blocks import find_blocks, refuse_none
from profiler.training.checkpointing.block_segments import checkpoint_segments
from profiler.training.checkpointing.observed_forward import observe
from profiler.training.workload import Workload


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(8)])
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.other = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def module(**children: nn.Module) -> nn.Module:
    made = nn.Module()
    for name, child in children.items():
        made.add_module(name, child)
    return made


def leaves(count: int) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(count)]


def numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{i}" for i in range(count))


@pytest.mark.slow
def test_a_sequential_is_flattened():
    found = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Tanh())))

    assert find_blocks(found) == ("0", "1.0", "1.1.0", "1.1.1")


def test_the_list_of_like_children_is_the_trunk_and_what_is_in_its_blocks_is_not():
    found = module(embed=nn.Embedding(9, 4), layers=nn.ModuleList([Layer() for _ in range(3)]), head=nn.Linear(4, 9))

    assert find_blocks(found) == numbered("layers", 3)


def test_encoder_and_decoder_are_both_stacks():
    found = module(
        encoder=module(layers=nn.ModuleList([Layer() for _ in range(3)])),
        decoder=module(layers=nn.ModuleList([Layer() for _ in range(2)])),
    )

    assert find_blocks(found) == (*numbered("encoder.layers", 3), *numbered("decoder.layers", 2))


def test_a_large_embedding_does_not_hide_a_small_stack():
    found = module(embed=nn.Embedding(30522, 4), layers=nn.ModuleList(leaves(3)), head=nn.Linear(4, 30522))

    assert find_blocks(found) == numbered("layers", 3)


def test_stems_and_heads_of_single_operators_are_left_out_beside_blocks():
    found = module(
        stem=nn.Sequential(*leaves(2)), stage=nn.Sequential(Branch(), Branch()), top=nn.Sequential(*leaves(2))
    )

    assert find_blocks(found) == numbered("stage", 2)


def test_branches_are_no_trunk_and_auxiliary_classifiers_no_blocks():
    found = module(
        first=nn.Linear(2, 2),
        mixed1=Branch(),
        mixed2=Branch(),
        mixed3=Branch(),
        AuxLogits=nn.Linear(2, 2),
        mixed4=Branch(),
        pool=nn.AdaptiveAvgPool1d(1),
        fc=nn.Linear(2, 2),
    )

    assert find_blocks(found) == ("first", "mixed1", "mixed2", "mixed3", "mixed4")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("model.layers.*", numbered("model.layers", 3)),
        ("model.*", ("model.layers",)),
        ("*.layers.1", ("model.layers.1",)),
    ],
)
def test_a_pattern_chooses_by_name_and_a_star_does_not_go_past_a_dot(pattern, expected):
    found = module(model=module(layers=nn.ModuleList([Layer() for _ in range(3)])))

    assert find_blocks(found, pattern) == expected


def test_where_nothing_is_found_the_reason_names_the_option():
    with pytest.raises(Unsupported, match="no blocks match 'layers"):
        find_blocks(nn.Linear(2, 2), "layers.*")
    with pytest.raises(Unsupported, match="name them with --blocks"):
        refuse_none(find_blocks(nn.Linear(2, 2)))


def test_a_block_that_writes_over_its_input_is_checkpointed_all_the_same():
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Linear(3, 3), nn.Hardswish(inplace=True), nn.Linear(3, 3))
    work = Workload(module=chain, blocks=("0", "1", "2"), batch=torch.randn(4, 3), loss=lambda m, x: m(x).sum())
    expected = torch.autograd.grad(work.loss(chain, work.batch), list(chain.parameters()))

    checkpoint_segments(work, [[0], [1], [2]])
    work.loss(chain, work.batch).backward()

    assert all(torch.equal(p.grad, g) for p, g in zip(chain.parameters(), expected, strict=True))


class Between(nn.Module):
    """Writes over the activation between its blocks, or does not."""

    def __init__(self, *, touch: bool) -> None:
        super().__init__()
        self.blocks, self.touch = nn.ModuleList(leaves(2)), touch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x)
        return self.blocks[1](F.relu(x, inplace=True) if self.touch else x)


@pytest.mark.parametrize("touch", [True, False])
def test_what_is_written_over_between_two_blocks_unlinks_them(touch):
    work = Workload(
        module=Between(touch=touch), blocks=numbered("blocks", 2), batch=torch.randn(4, 2), loss=lambda m, x: m(x).sum()
    )

    assert observe(work).linked[0] is not touch
