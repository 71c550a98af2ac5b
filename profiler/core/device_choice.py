"""A device's word -> its name, whether the device is here or not. Knows nothing of torch."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from profiler.core import gpu_specs
from profiler.core.case import Case, split_choices
from profiler.core.errors import UserError, nearest
from profiler.core.gpu_specs import CUDA, FAKE, KIND, REHEARSE, absent, parse
from profiler.core.record import Environment

RANKS_PER_CORE = 8
SEVERAL = "cuda"  # the device of a case that runs on any one of several
BY_NUMBER = (
    "choose from auto, cpu, cuda, cuda:N, or fake:h100, rehearse:h100, ... for GPUs that are not here; "
    "`gcprof doctor` lists those that are here, "
    "and CUDA_VISIBLE_DEVICES takes the UUID of a GPU or of a MIG slice"
)


def _refuse_bare(word: str) -> None:
    """Raise UserError for a GPU by its name if a step is to be measured; the hint names what works."""
    if gpu_specs.is_known(word):
        hint = f"--device {FAKE}{word} predicts for it, --device {REHEARSE}{word} rehearses it; cuda measures here"
        raise UserError(f"--device: '{word}' is not a device here", hint=hint)


def words(device: str | None, gpus: str | None) -> list[str]:
    """Return the words of --device (default `auto`), or a device name for each kind of --gpus. Raises UserError.

    Only predictions and rehearsals take a list of GPUs; a run measures on one device.
    """
    if gpus is not None and device is not None:
        raise UserError("--gpus has no effect with --device", hint="leave one of them out")
    if gpus is not None:
        for kind in (kinds := [word.strip().lower() for word in gpus.split(",")]):
            if not KIND.fullmatch(kind):
                message = f"--gpus: '{kind}' is not a kind of GPU"
                raise UserError(message, hint="write kinds as the cluster has them: a100,h100")
        return [CUDA + kind for kind in kinds]
    given = ["auto"] if device is None else [device]
    if device is not None and all(map(str.strip, device.split(","))):  # an empty item keeps it one word, refused later
        given = list(map(str, split_choices(device)))
    kinds = [word for word in given if parse(word).kind]
    if kinds:
        hint = f"{BY_NUMBER}; --gpus takes kinds, on a cluster"
        raise UserError(f"--device: '{kinds[0]}' is not a device", hint=hint)
    if len(given) > 1 and {parse(word).prefix for word in given} not in ({FAKE}, {REHEARSE}):
        hint = "measure on each, and compare the runs; predictions and rehearsals take a list: "
        hint += ",".join(f"{parse(given[0]).prefix or FAKE}{gpu}" for gpu in ("t4", "h100"))
        raise UserError(f"--device: '{device}' is more than one device, and a run measures on one", hint=hint)
    return given


def any_device(word: str) -> str:
    """Return a stand-in for a device before devices are known. Raises UserError for what is no device anywhere."""
    if parse(word).prefix:
        return str(absent(word))
    if parse(word).kind:
        return word
    _refuse_bare(word)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", word, flags=re.ASCII):
        meant = nearest(word, gpu_specs.names(), before=f"--device {FAKE}")
        raise UserError(f"--device: '{word}' is not a device", hint=meant or BY_NUMBER)
    return "cuda:0"


def choose_device(word: str, devices: list[str]) -> str:
    """Return a device's name: `auto` and `cuda` are the first CUDA device, `auto` the CPU if there is none.

    Raises UserError: exit code 3 if there is no CUDA device, or none of this kind; 2 if this one is not there.
    """
    if parse(word).prefix:
        return str(absent(word))
    cuda = [name for name in devices if name.startswith("cuda")]
    if word in ("auto", "cuda") and len(of := [kind for name in cuda if (kind := parse(name).kind)]) > 1:
        raise UserError(f"here are several kinds of GPU: {', '.join(of)}", hint=f"say which: --gpus {of[0]},{of[1]}")
    name = {"auto": cuda[0] if cuda else "cpu", "cuda": cuda[0] if cuda else "cuda"}.get(word, word)
    if name in devices:
        return name
    if kind := parse(name).kind:
        offered = ", ".join(kind for name in cuda if (kind := parse(name).kind))
        raise UserError(f"--gpus: there is no '{kind}' here", hint=f"choose from {offered or 'none'}", exit_code=3)
    if name.startswith("cuda") and not cuda:
        message = f"--device: there is no '{word}': torch sees no CUDA device here"
        raise UserError(message, hint="--device cpu measures the CPU; `gcprof doctor` shows more", exit_code=3)
    _refuse_bare(word)
    raise UserError(f"--device: '{word}' is not a device here", hint=f"choose from auto, {', '.join(devices)}")


def several(
    text: str, devices: Mapping[str, Environment], *, twice: bool = False
) -> tuple[tuple[str, ...], dict[str, Environment]]:
    """Return the UUIDs of the GPUs `all`, `0,1` or UUIDs; and the devices, with these GPUs as the one SEVERAL.

    Raises UserError for a word that is no such GPU, for a GPU that is named twice (unless `twice`), and for GPUs of
    several kinds; with exit code 3 if there is no GPU.
    """
    cuda = {name: device for name, device in devices.items() if name.startswith("cuda")}
    if not cuda:
        hint = "--device cpu measures the CPU; `gcprof doctor` shows more"
        raise UserError("--devices: torch sees no CUDA device here", hint=hint, exit_code=3)
    words = list(cuda) if text == "all" else [word.strip() for word in text.split(",")]
    by_uuid = {visible(device.device_uuid): device for device in cuda.values() if device.device_uuid}
    chosen = []
    for word in words:
        device = cuda.get(f"cuda:{word.removeprefix('cuda:')}") or (by_uuid.get(visible(word)) if word else None)
        if device is None or not device.device_uuid:
            names = ", ".join(name.removeprefix("cuda:") for name in cuda)
            why = "is not a GPU here" if device is None else "does not tell its UUID"
            raise UserError(f"--devices: '{word}' {why}", hint=f"all, or some of {names}")
        chosen.append(device)
    uuids = tuple(visible(device.device_uuid or "") for device in chosen)
    if len(set(uuids)) < len(uuids) and not twice:
        raise UserError(f"--devices: '{text}' names a GPU twice", hint="--allow-parallel runs two trials on it at once")
    kinds = list(dict.fromkeys(str(device.device_name) for device in chosen))
    if len(kinds) > 1:
        hint = "measure on each kind by --device, and compare the runs"
        raise UserError(f"--devices: these are {' and '.join(kinds)}", hint=hint)
    rest = {name: device for name, device in devices.items() if name not in cuda}
    return uuids, {**rest, SEVERAL: msgspec.structs.replace(chosen[0], device_uuid=None)}


def visible(uuid: str) -> str:
    """Convert a UUID as torch reports it to what CUDA_VISIBLE_DEVICES takes."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def environment(name: str, devices: Mapping[str, Environment]) -> Environment:
    """Return the environment of a device that is here, or what is known of one that is predicted for or rehearsed."""
    if name in devices:
        return devices[name]
    versions = msgspec.structs.replace(devices["cpu"], device_uuid=None, driver=None)
    device = parse(name)
    gpu = gpu_specs.find(device.name) if device.is_rehearsed or device.name in gpu_specs.names() else None
    return msgspec.structs.replace(
        versions,
        device_name=gpu and (gpu_specs.HOLLOW if device.is_rehearsed else "") + gpu.name,
        device_bytes=gpu and ((device.is_rehearsed and device.bytes) or gpu.memory_bytes),
        num_threads=versions.num_threads if device.is_rehearsed else None,
    )


def is_hollow(name: str, devices: Mapping[str, Environment]) -> bool:
    """Whether a device has memory and does no arithmetic: a rehearsed one, or one here whose name says so."""
    return parse(name).is_rehearsed or name in hollow(devices)


def hollow(devices: Mapping[str, Environment]) -> set[str]:
    """Return the devices here that have memory and do no arithmetic."""
    return {name for name, device in devices.items() if gpu_specs.is_hollow(device.device_name)}


def refuse_crowded(cases: Iterable[Case], devices: Collection[str]) -> None:
    """Raise UserError (exit code 3) if a case has more ranks than CUDA devices, counted from its own on.

    On the CPU, ranks are processes of this machine: at most RANKS_PER_CORE for each core.
    """
    most = RANKS_PER_CORE * (os.cpu_count() or 1)
    for case in cases:
        kind, _, first = case.device.partition(":")
        if kind == "cpu" and case.num_ranks > most:
            message = f"--ranks {case.num_ranks}: each is a process, and more than {most} would overload this machine"
            raise UserError(message, hint="gcprof predict --device h100 needs none of them", exit_code=3)
        numbers = [int(name.removeprefix("cuda:")) for name in devices if re.fullmatch(r"cuda:\d+", name)]
        gpus = sum(number >= int(first) for number in numbers) if first.isdecimal() else 1  # a kind is one GPU a trial
        if kind == "cuda" and case.num_ranks > max(1, gpus):
            message = f"--ranks {case.num_ranks} from '{case.device}' on: each needs a device, and {gpus} are here"
            hint = "--device cpu measures them here; gcprof predict --device h100 needs no device"
            raise UserError(message, hint=hint, exit_code=3)


def refuse_absent(names: Iterable[str], devices: Mapping[str, Environment]) -> None:
    """Raise UserError (exit code 3) for a device that is to be measured and is not here."""
    for name in names:
        if name not in devices and not parse(name).prefix:
            message = f"--calibrate measures '{name}' first, and torch sees none here"
            raise UserError(message, hint="leave it out: the prediction is made without", exit_code=3)
