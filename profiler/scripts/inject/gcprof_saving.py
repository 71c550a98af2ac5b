"""Where the system refuses to guard files: what a script saves goes to a scratch folder, the folder GCPROF_SAVING.

That is what it saves by torch.save, safetensors, torch.distributed.checkpoint, by `save_pretrained` and Trainer of
transformers, and by Lightning's checkpoints. What the same run loads again by the same libraries is what it has saved.
All else that it writes, by `open` for example, is written as ever. Needs torch and the standard library alone.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

ROOT = os.path.realpath(os.environ["GCPROF_SAVING"])
SMALL = 1 << 20  # bytes: a smaller file of a redirected folder is copied, since it may be written in place


def begin() -> None:
    """Redirect what is imported already, and the rest as it is imported."""
    torch.save = torch.serialization.save = _writes(torch.save, 1)
    torch.load = torch.serialization.load = _reads(torch.load, 0)
    for name, redirect in HOOKS.items():
        if name in sys.modules:
            redirect(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


def there(path: Any) -> Any:
    """Return where a file that would be written to `path` goes, in a folder that exists; a stream is left alone."""
    if not isinstance(path, str | os.PathLike) or "://" in os.fspath(path):
        return path
    place = _place(path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(place):
        os.remove(place)  # to a file of the user's
    return type(path)(place) if isinstance(path, os.PathLike) else place  # type: ignore[call-arg]


def here(path: Any) -> Any:
    """Return what is to be read for `path`: what this run saved there, or the file itself."""
    if not isinstance(path, str | os.PathLike):
        return path
    place = _place(path)
    if not os.path.exists(place):
        return path
    return type(path)(place) if isinstance(path, os.PathLike) else place  # type: ignore[call-arg]


def _place(path: str | os.PathLike[str]) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    whole = os.path.join(os.path.realpath(folder), name)
    return whole if f"{whole}{os.sep}".startswith(ROOT + os.sep) else os.path.join(ROOT, whole.lstrip(os.sep))


def folder_there(path: str) -> str:
    """Return the folder that stands for a folder: with its small files, and links to the large ones."""
    place: str = there(path)
    with suppress(FileExistsError):  # another rank was first
        os.makedirs(place)
        if os.path.isdir(path) and place != os.fspath(path):
            shutil.copytree(path, place, dirs_exist_ok=True, copy_function=_copy)
    return place


def _copy(source: str, target: str) -> str:
    if os.path.getsize(source) > SMALL:
        os.symlink(os.path.realpath(source), target)
        return target
    return str(shutil.copy2(source, target))


# ---- functions that save and load, by the place of the path among their arguments


def _with(change: Callable[[Any], Any], function: Callable[..., Any], *places: int) -> Callable[..., Any]:
    """Return the function with the arguments in these places, by position or name, changed."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*words: Any, **keywords: Any) -> Any:
        given = list(words)
        for place in places:
            if place < len(given):
                given[place] = change(given[place])
            elif place < len(names) and names[place] in keywords:
                keywords[names[place]] = change(keywords[names[place]])
        return function(*given, **keywords)

    return call


def _writes(function: Callable[..., Any], *places: int) -> Callable[..., Any]:
    return _with(there, function, *places)


def _reads(function: Callable[..., Any], *places: int) -> Callable[..., Any]:
    return _with(here, function, *places)


# ---- libraries


def _safetensors(module: Any) -> None:
    serialize_file, safe_open = module.serialize_file, module.safe_open

    def write(tensors: Any, filename: Any, *words: Any, **keywords: Any) -> Any:
        return serialize_file(tensors, there(filename), *words, **keywords)

    def read(filename: Any, *words: Any, **keywords: Any) -> Any:
        return safe_open(here(filename), *words, **keywords)

    if not hasattr(serialize_file, "__code__"):  # of the library itself: not ours already
        module.serialize_file, module.safe_open = write, read


def _distributed(module: Any) -> None:
    files = module.FileSystem
    stream = files.create_stream

    @wraps(stream)
    def create_stream(self: Any, path: Any, mode: str) -> Any:
        return stream(self, here(path) if mode.startswith("r") else there(path), mode)

    files.create_stream = create_stream
    files.rename = _writes(files.rename, 1, 2)
    files.mkdir = _writes(files.mkdir, 1)
    files.exists = _reads(files.exists, 1)
    plain_remove = files.rm_file

    @wraps(plain_remove)
    def rm_file(self: Any, path: Any) -> None:
        if here(path) != path or os.fspath(path).startswith(ROOT + os.sep):
            plain_remove(self, here(path))

    files.rm_file = rm_file


def _pretrained(*names: str) -> Callable[[Any], None]:
    def redirect(module: Any) -> None:
        for name in names:
            if kind := getattr(module, name, None):
                kind.save_pretrained = _with(folder_there, kind.save_pretrained, 1)

    return redirect


def _trainer(module: Any) -> None:
    plain = module.TrainingArguments.__post_init__

    @wraps(plain)
    def __post_init__(self: Any) -> None:
        self.output_dir = folder_there(self.output_dir or "trainer_output")
        plain(self)

    module.TrainingArguments.__post_init__ = __post_init__


def _lightning(module: Any) -> None:
    kind = module.TorchCheckpointIO
    kind.save_checkpoint = _writes(kind.save_checkpoint, 2)
    kind.load_checkpoint = _reads(kind.load_checkpoint, 1)
    plain = kind.remove_checkpoint

    @wraps(plain)
    def remove_checkpoint(self: Any, path: Any) -> None:
        if here(path) != path:  # what this run saved
            plain(self, here(path))

    kind.remove_checkpoint = remove_checkpoint


HOOKS: dict[str, Callable[[Any], None]] = {
    "safetensors": _safetensors,
    "safetensors.torch": _safetensors,
    "torch.distributed.checkpoint.filesystem": _distributed,
    "transformers.modeling_utils": _pretrained("PreTrainedModel"),
    "transformers.configuration_utils": _pretrained("PreTrainedConfig", "PretrainedConfig"),
    "transformers.generation.configuration_utils": _pretrained("GenerationConfig"),
    "transformers.tokenization_utils_base": _pretrained("PreTrainedTokenizerBase"),
    "transformers.feature_extraction_utils": _pretrained("FeatureExtractionMixin"),
    "transformers.image_processing_base": _pretrained("ImageProcessingMixin"),
    "transformers.processing_utils": _pretrained("ProcessorMixin"),
    "transformers.training_args": _trainer,
    "lightning.fabric.plugins.io.torch_io": _lightning,
    "lightning_fabric.plugins.io.torch_io": _lightning,
}


class _Finder:
    """Finds what is in HOOKS as the other finders do, and redirects it once it is loaded."""

    is_asking = False  # the other finders

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name not in HOOKS or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = find_spec(name)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                HOOKS[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
