"""Where the system refuses to guard files: what a script saves goes to a scratch folder, the folder GCPROF_SAVING.

That is what it saves by torch.save, safetensors, torch.distributed.checkpoint, by `save_pretrained` and Trainer of
transformers, and by Lightning's checkpoints. What the same run loads again by the same libraries is what it has saved.
All else that it writes, by `open` for example, is written as ever. Needs torch and the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import torch

ROOT = os.path.realpath(os.environ["GCPROF_SAVING"])
SMALL = 1 << 20  # bytes: a smaller file of a redirected folder is copied, since it may be written in place


def begin(finder: Any) -> None:
    """Redirect what is imported already, and the rest as it is imported: `finder` is that of `sitecustomize`."""
    torch.save = torch.serialization.save = _with(there, torch.save, 1, "f")
    torch.load = torch.serialization.load = _with(here, torch.load, 0, "f")
    for name, redirect in HOOKS.items():
        if name in sys.modules:
            redirect(sys.modules[name])

    def load(name: str, execute: Callable[[], None], origin: str) -> None:
        execute()
        HOOKS[name](sys.modules[name])

    sys.meta_path.insert(0, finder({name: partial(load, name) for name in HOOKS}))


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
    if not isinstance(path, str | os.PathLike) or not os.path.exists(place := _place(path)):
        return path
    return type(path)(place) if isinstance(path, os.PathLike) else place  # type: ignore[call-arg]


def _place(path: str | os.PathLike[str]) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    whole = os.path.join(os.path.realpath(folder), name)
    return whole if f"{whole}{os.sep}".startswith(ROOT + os.sep) else os.path.join(ROOT, whole.lstrip(os.sep))


def folder_there(path: str) -> str:
    """Return the folder that stands for a folder: with its small files, and links to the large ones."""

    def copy(source: str, target: str) -> str:
        if os.path.getsize(source) > SMALL:
            os.symlink(os.path.realpath(source), target)
            return target
        return str(shutil.copy2(source, target))

    place: str = there(path)
    with suppress(FileExistsError):  # another rank was first
        os.makedirs(place)
        if os.path.isdir(path) and place != os.fspath(path):
            shutil.copytree(path, place, dirs_exist_ok=True, copy_function=copy)
    return place


# ---- functions that save, load and remove


def _with(change: Callable[[Any], Any], function: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
    """Return the function with the argument in this place, or of this name, changed."""

    @wraps(function)
    def call(*words: Any, **keywords: Any) -> Any:
        if place < len(words):
            words = (*words[:place], change(words[place]), *words[place + 1 :])
        elif name in keywords:
            keywords[name] = change(keywords[name])
        return function(*words, **keywords)

    return call


def _removing(plain: Callable[..., None]) -> Callable[..., None]:
    """Return a method that removes what this run saved, and no file of the user's."""

    @wraps(plain)
    def remove(self: Any, path: Any) -> None:
        if os.fspath(here(path)).startswith(ROOT + os.sep):
            plain(self, here(path))

    return remove


# ---- libraries


def _safetensors(module: Any) -> None:
    if not hasattr(module.serialize_file, "__code__"):  # of the library itself: not ours already
        module.serialize_file = _with(there, module.serialize_file, 1, "filename")
        module.safe_open = _with(here, module.safe_open, 0, "filename")


def _distributed(module: Any) -> None:
    files = module.FileSystem
    stream = files.create_stream

    @wraps(stream)
    def create_stream(self: Any, path: Any, mode: str) -> Any:
        return stream(self, here(path) if mode.startswith("r") else there(path), mode)

    files.create_stream = create_stream
    files.rename = _with(there, _with(there, files.rename, 1, "path"), 2, "new_path")
    files.mkdir = _with(there, files.mkdir, 1, "path")
    files.exists = _with(here, files.exists, 1, "path")
    files.rm_file = _removing(files.rm_file)


def _hub(module: Any) -> None:
    """Redirect `save_pretrained` of every class that has one: all of them can be pushed to the hub."""

    def __init_subclass__(kind: Any, /, **keywords: Any) -> None:
        if "save_pretrained" in vars(kind):
            kind.save_pretrained = _with(folder_there, kind.save_pretrained, 1, "save_directory")

    module.PushToHubMixin.__init_subclass__ = classmethod(__init_subclass__)


def _trainer(module: Any) -> None:
    plain = module.TrainingArguments.__post_init__

    @wraps(plain)
    def __post_init__(self: Any) -> None:
        self.output_dir = folder_there(self.output_dir or "trainer_output")
        plain(self)

    module.TrainingArguments.__post_init__ = __post_init__


def _lightning(module: Any) -> None:
    kind = module.TorchCheckpointIO
    kind.save_checkpoint = _with(there, kind.save_checkpoint, 2, "path")
    kind.load_checkpoint = _with(here, kind.load_checkpoint, 1, "path")
    kind.remove_checkpoint = _removing(kind.remove_checkpoint)


HOOKS: dict[str, Callable[[Any], None]] = {
    "safetensors": _safetensors,
    "safetensors.torch": _safetensors,
    "torch.distributed.checkpoint.filesystem": _distributed,
    "transformers.utils.hub": _hub,
    "transformers.training_args": _trainer,
    "lightning.fabric.plugins.io.torch_io": _lightning,
    "lightning_fabric.plugins.io.torch_io": _lightning,
}
