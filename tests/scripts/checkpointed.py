"""Scripts with checkpoints written in by hand, as PyTorch's documentation has them: nothing here knows gcprof.

EDITS has for each pair of a script and a strategy what is replaced.
"""

from __future__ import annotations

PRELUDE = """
import torch as _torch
from torch.utils.checkpoint import checkpoint as _checkpoint, checkpoint_sequential as _sequential


class _Each(_torch.nn.Sequential):
    def forward(self, x):
        for part in self:
            x = _checkpoint(part, x, use_reentrant=False)
        return x


class _Segments(_torch.nn.Sequential):
    def forward(self, x):  # checkpoint_sequential would hold the first segment's output until it returns
        parts, half = list(self), len(self) // 2
        x = _checkpoint(_torch.nn.Sequential(*parts[:half]), x, use_reentrant=False)
        for part in parts[half:]:
            x = part(x)
        return x


"""
EDITS = {
    ("nanogpt_like", "all"): [("x = block(x)", "x = _checkpoint(block, x, use_reentrant=False)")],
    ("gan", "sqrt"): [("self.main(input)", "_sequential(self.main, 3, input, use_reentrant=False)")],
    ("imagenet_like", "all"): [
        ("scheduler = ", "for nth in '1234':\n    getattr(model, 'layer' + nth).__class__ = _Each\nscheduler = ")
    ],
    ("ddp", "sqrt"): [("model = nn.Sequential(", "model = _Segments(")],
    ("fsdp2", "all"): [("nn.Sequential(nn.Embedding", "_Each(nn.Embedding")],
    ("trainer", "hf"): [("bf16=True,", "bf16=True, activation_checkpointing=True,")],
}


def checkpointed(name: str, strategy: str, text: str) -> str:
    """Return the text of a script with the checkpoints of a strategy; each replacement is used."""
    for old, new in EDITS[name, strategy]:
        assert old in text, old
        text = text.replace(old, new)
    return PRELUDE + text
