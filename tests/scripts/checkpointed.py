"""Scripts with checkpoints written in by hand, as PyTorch's documentation has them: nothing here knows gcprof.

EDITS has for each pair of a script and a strategy what is replaced; DEEPER is replaced in the script as it is too.
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


class _Whole(_torch.nn.Sequential):
    def forward(self, x):
        return _checkpoint(super().forward, x, use_reentrant=False)


def _run(parts, x):
    for part in parts:
        x = part(x)
    return x


class _Segments(_torch.nn.Sequential):
    def forward(self, x):  # checkpoint_sequential would hold the first segment's output until it returns
        parts = list(self)
        half = len(parts) // 2
        x = _checkpoint(_run, parts[:half], x, use_reentrant=False)
        for part in parts[half:]:
            x = part(x)
        return x


def _each_without_inplace(sequential):
    for part in sequential:
        if getattr(part, "inplace", False):
            part.inplace = False
    sequential.__class__ = _Each


"""
DEEPER = {"nanogpt_like": [("n_embd = 256, 2, 4, 128", "n_embd = 256, 6, 4, 128")]}
LINEARS = [
    (f"self.{name}({given})", f"_checkpoint(self.{name}, {given}, use_reentrant=False)")
    for name, given in (
        ("fc1", "x"), ("fc21", "h1"), ("fc22", "h1"), ("fc3", "z"), ("fc4", "F.relu(_checkpoint(self.fc3, z, use_reentrant=False))"),
    )
]  # fmt: skip
RESNET = "criterion = nn.CrossEntropyLoss().to(device)"


def _loop(num: int) -> list[tuple[str, str]]:
    old = "        for block in self.h:\n            x = block(x)\n"
    return [(old, f"        x = _sequential(self.h, {num}, x, use_reentrant=False)\n")]


EDITS = {
    ("nanogpt_like", "all"): [("x = block(x)", "x = _checkpoint(block, x, use_reentrant=False)")],
    ("nanogpt_like", "sqrt"): _loop(2),
    ("nanogpt_like", "segments:k=3"): _loop(3),
    ("nanogpt_like", "every"): [
        ("for block in self.h:", "for nth, block in enumerate(self.h):"),
        ("x = block(x)", "x = _checkpoint(block, x, use_reentrant=False) if nth % 2 else block(x)"),
    ],
    ("vae", "all"): LINEARS,
    ("resume", "all"): [("nn.Sequential(", "_Each(")],
    ("resume", "sqrt"): [("nn.Sequential(", "_Segments(")],
    ("imagenet_like", "all"): [
        (RESNET, f"for nth in '1234':\n    getattr(model, 'layer' + nth).__class__ = _Each\n{RESNET}")
    ],
    ("imagenet_like", "sqrt"): [(RESNET, f"model.layer1.__class__ = model.layer2.__class__ = _Whole\n{RESNET}")],
    ("gan", "sqrt"): [("self.main(input)", "_sequential(self.main, 3, input, use_reentrant=False)")],
    ("gan", "all"): [("criterion = nn.BCELoss()", "for net in netG, netD:\n    _each_without_inplace(net.main)\n"
                                                  "criterion = nn.BCELoss()")],
    ("unet_diffusion", "all"): [("model = UNet().to(device)", "model = UNet().to(device)\n"
                                 "for part in model.time, model.out:\n    part.__class__ = _Each")],
    ("ddp", "all"): [("model = nn.Sequential(", "model = _Each(")],
    ("ddp", "sqrt"): [("model = nn.Sequential(", "model = _Segments(")],
    ("fsdp2", "all"): [("nn.Sequential(nn.Embedding", "_Each(nn.Embedding")],
    ("fsdp2", "sqrt"): [("nn.Sequential(nn.Embedding", "_Segments(nn.Embedding")],
    ("trainer", "hf"): [("bf16=True,", "bf16=True, activation_checkpointing=True,")],
    ("trainer", "all"): [("bf16=True,", "bf16=True, activation_checkpointing=True,")],
}  # fmt: skip


def deepened(name: str, text: str) -> str:
    """Return the text of a script whose model is deep enough to be cut."""
    return _replaced(text, DEEPER.get(name, ()))


def checkpointed(name: str, strategy: str, text: str) -> str:
    """Return the text of a script with the checkpoints of a strategy; each replacement is used."""
    return PRELUDE + _replaced(text, EDITS[name, strategy])


def _replaced(text: str, pairs) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text
