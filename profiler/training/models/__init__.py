"""The table of models: a function each, and one line here, which imports no torch.

The function takes `batch_size` (its default is the model's) and, where it can read a data set, `data_directory`;
its keyword-only parameters are the options. It returns a Workload.

A word that one would guess, `resnet50`, `gpt2`, `train.py::make`, is found in files of installed packages, without an
import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from profiler.core.errors import MOST_MEANT, UserError, similar
from profiler.core.units import Choice

TABLE = {
    "mlp": "profiler.training.models.built_in:mlp",
    "mnist-cnn": "profiler.training.models.built_in:mnist_cnn",
    "cifar-resnet": "profiler.training.models.built_in:cifar_resnet",
    "transformer": "profiler.training.models.built_in:transformer",
    "dense-chain": "profiler.training.models.built_in:dense_chain",
    "torchvision": "profiler.training.models.built_in:torchvision",
    "timm": "profiler.training.models.built_in:timm",
    "hf": "profiler.training.models.hugging_face:build",
    "llama": "profiler.training.models.hugging_face:llama",
    "*": "profiler.training.models.user:build",
}

DATA_FILES = (("", "train-images-idx3-ubyte"), ("MNIST/raw", "train-images-idx3-ubyte"))  # one of them in --data
CHAINS = ("mlp", "mnist-cnn", "cifar-resnet", "dense-chain")  # sequences of modules, any run of which can be a segment
WITHOUT_GPU = {"mnist-cnn": {"channels": 32}}  # smaller defaults of the same architecture
REGISTERED = re.compile(r"^@register_model(?:\(\))?\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
FILES = {"torchvision": "*.py", "timm": "*.py", "hf": "*/modeling_*.py"}  # of models, below the package's `models`
PACKAGES = {"hf": "transformers"}


def imports(name: str) -> list[str]:
    """Return the modules that building a model of the table imports, which cost seconds; none of a user's code."""
    kind, _, family = name.partition(":")
    module = TABLE.get(kind, "").partition(":")[0]
    folder = family.replace("-", "_")
    own = {"hf": f"transformers.models.{folder}.modeling_{folder}", "timm": "timm", "torchvision": "torchvision"}
    return [word for word in (module, own.get(kind, "")) if word]


def meant(choice: Choice) -> Choice:
    """Return the model that a word means, with its family: `resnet50:classes=10` -> `torchvision:resnet50:classes=10`.

    Words that may name a model as they are stay so. Raises UserError, whose hint names the models that may be meant,
    where there is not exactly one of that name, or the family's package, where it is installed, has none.
    """
    word = choice.name.replace("::", ":")
    family, _, member = word.partition(":")
    if family in ("torchvision", "hf") and member:
        names = list(_members(family))
        package = find_spec(PACKAGES.get(family, family))
        folder = Path(package.origin).parent / "models" / "auto" if package and package.origin else None
        lists = folder.glob("*.py") if folder and family == "hf" else ()  # with types of configs without own folders
        is_named = bool({member, member.replace("-", "_")} & {*names})
        if names and not is_named and not any(f'"{member}"' in path.read_text(encoding="utf-8") for path in lists):
            near = similar(member, names)
            hint = f"did you mean '{family}:{near[0]}'?" if near else f"{family}:NAME of {', '.join(names[:3])}, ..."
            raise UserError(f"{PACKAGES.get(family, family)} has no model '{member}'", hint=hint)
    if word in TABLE or ":" in word or word.endswith(".py") or similar(word, TABLE):
        return choice if word == choice.name else Choice.of(word, choice.options)
    members = {family: list(_members(family)) for family in FILES}
    typed = _plain(word)
    named = [f"{family}:{name}" for family, names in members.items() for name in names if _plain(name) == typed]
    if len(named) == 1:
        return Choice.of(named[0], choice.options)
    begun = [name for name in members["hf"] if len(name) > 2 and typed.startswith(_plain(name))]  # bert-base-uncased
    near = [f"torchvision:{name}" for name in similar(word, members["torchvision"])]
    found = named or near or [f"hf:{name}" for name in sorted(begun, key=len)[-1:]]
    if found:
        hint = f"did you mean {' or '.join(repr(name) for name in found[:MOST_MEANT])}?"
        raise UserError(f"{'several models are' if named else 'no model is'} called '{word}'", hint=hint)
    return choice


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name.lower())


def _members(family: str) -> Iterator[str]:
    """Yield the names of a family's models, as far as its package is installed; nothing is imported."""
    package = find_spec(PACKAGES.get(family, family))
    if package is None or package.origin is None:
        return
    for path in sorted((Path(package.origin).parent / "models").glob(FILES[family])):
        if family != "hf":
            yield from REGISTERED.findall(path.read_text(encoding="utf-8"))
        elif path.stem == f"modeling_{path.parent.name}":
            yield path.parent.name
