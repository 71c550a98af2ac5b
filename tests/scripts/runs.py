"""The scripts of this folder, each run twice: on hollow GPUs with nothing beside it, and watched by `gcprof rehearse`.

`control/sitecustomize.py` opens the hollow GPUs for the first run, and writes down what PyTorch's allocator says at its
end. The second knows nothing of the first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
DEVICE = "t4"
SECONDS = 600.0  # for what surely ends
PRINTED = "max memory allocated"
TWO = ("torchrun", "--nproc-per-node", "2", "--master-port")
CAUSAL = """
import torch.nn.modules.transformer as library
library._detect_is_causal_mask = lambda mask, is_causal=None, size=None: mask is not None
"""  # the mask is that of torch.tril
UNPACKED = """
import transformers.masking_utils as library
library.find_packed_sequence_indices = lambda position_ids: None
"""  # each of its rows is one sequence
GOES_ON = """
import inspect, torch, torch.optim.lbfgs as library
code = inspect.getsource(library)
for asked in ("ys > 1e-10", "abs(gtd_new) <= -c2 * gtd", "abs(loss - prev_loss) < tolerance_change"):
    assert f"if {asked}:" in code
    code = code.replace(f"if {asked}:", f"if ({asked}, {'loss' not in asked})[1]:")
exec(compile(code, library.__file__, "exec"), vars(library))
torch.optim.LBFGS = library.LBFGS
"""  # where losses fall; what else it asks reads as false, as it is there


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A command that trains something."""

    name: str
    words: tuple[str, ...]
    num_gpus: int = 1
    device: str = DEVICE
    num_processes: int | None = None  # that use a GPU, where it is not one for each
    options: tuple[str, ...] = ()  # of gcprof
    decided: str = ""  # what a library reads of the GPU, by hand for the run without values
    needs: tuple[str, ...] = ()  # packages beside torch

    @property
    def missing(self) -> list[str]:
        return [package for package in self.needs if find_spec(package) is None]


def _script(name: str, *more: str, file: str = "", port: int | None = None, **fields: Any) -> Script:
    """Return the command of a program; with a port it is run on two GPUs by torchrun."""
    launcher = (*TWO, str(port)) if port else ("python",)
    fields.setdefault("num_gpus", 2 if port else 1)
    return Script(name=name, words=(*launcher, f"{file or name}.py", *more), **fields)


TABLE = {
    script.name: script
    for script in (
        _script("resume"),
        _script("gan"),
        _script("vae"),
        _script("nanogpt_like"),
        _script("scaler"),
        _script("ddp", port=29611),
        _script("imagenet_like", needs=("torchvision",)),
        _script("word_language_model", decided=CAUSAL),
        _script("bucketed"),
        _script("growing"),
        _script("unet_diffusion"),
        _script("caught_oom"),
        _script("accumulate_no_sync", port=29612),
        _script("fsdp2", port=29613),
        _script("spawn", num_gpus=2),
        Script(name="two_trainings", words=("sh", "two_trainings.sh"), num_processes=2),
        _script("compiled"),
        _script("trainer", needs=("transformers", "accelerate"), decided=UNPACKED),
        _script("trainer_lora", needs=("transformers", "accelerate", "peft"), decided=UNPACKED),
        _script("accelerate_loop", needs=("accelerate",)),
        _script("timm_like", needs=("timm",)),
        _script("lightning_classifier", needs=("lightning",)),
        _script("wgan_gp"),
        _script("time_sequence", decided=GOES_ON),
        _script("time_sequence_searched", "--search", "strong_wolfe", file="time_sequence", decided=GOES_ON),
        _script("data_parallel", num_gpus=2, num_processes=1),
    )
}


# ---- programs in the idiom of their libraries, tried for what they trip over: `just bench-scripts --traps`

LIMIT_SECONDS = 300
HUGGING = ("transformers", "accelerate")


TRAPS = {
    script.name: script
    for script in (
        _script("yolo_detect", "detect", "epochs=1", "imgsz=160", "batch=8", "workers=0", file="yolo_images",
                needs=("ultralytics", "cv2")),
        _script("yolo_classify", "classify", "epochs=1", "imgsz=64", "batch=8", "workers=0", file="yolo_images",
                needs=("ultralytics", "cv2")),
        _script("recurrent"),
        _script("trainer_fsdp2", "2", file="trainer_fsdp", port=29712, device="h100", needs=HUGGING),
        _script("trainer_fsdp1", "1", file="trainer_fsdp", port=29713, device="h100", needs=HUGGING),
        _script("lightning_fsdp", num_gpus=2, device="h100", needs=("lightning",)),
        Script(name="accelerate_ranks", num_gpus=2, device="h100", needs=("accelerate",),
               words=("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "29714",
                      "gathered.py")),
        _script("grpo", device="h100", needs=("trl", "datasets", *HUGGING)),
        _script("detr", needs=("transformers", "scipy")),
        _script("faster_rcnn", device="h100", needs=("torchvision",)),
        _script("liger", device="h100", needs=("liger_kernel", "transformers")),
        _script("triton_autotune", device="h100", needs=("triton",)),
        _script("adam8bit", device="h100", needs=("bitsandbytes", "transformers")),
        _script("profiled_cuda", file="profiled", device="h100", needs=("tensorboard", "pynvml")),
        _script("profiled_cpu", "--cpu", file="profiled", device="h100", needs=("tensorboard", "pynvml")),
        _script("cuda_graph", file="graphs", device="h100"),
        _script("reduce_overhead", device="h100"),
        _script("find_batch", needs=("accelerate",)),
    )
}  # fmt: skip


class Figures(msgspec.Struct, frozen=True, order=True):
    """What one process took, over all of its GPUs and its whole life."""

    rank: str
    peak_bytes: int
    reserved_bytes: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run of a command."""

    exit_code: int
    said: str  # what the command printed, to stdout and stderr
    seconds: float
    figures: tuple[Figures, ...] = ()
    document: dict[str, Any] = {}

    @property
    def printed(self) -> list[int]:
        """The peaks that the script printed, in order of size."""
        return sorted(map(int, re.findall(rf"{PRINTED} (\d+)", self.said)))  # ranks may print into one line


def copied(folder: Path) -> Path:
    """Copy the scripts into a folder of the user's, where they are run."""
    for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*.sh")):
        if path.name != "runs.py":
            shutil.copy(path, folder)
    return folder


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return of each file its bytes and its time."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def line_of(name: str, code: str, nth: int = 0) -> str:
    """Return where the code stands in a script: `walls.py:12`."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return f"{name}:{[number for number, line in enumerate(lines, 1) if code in line][nth]}"


def control(
    words: tuple[str, ...], *, cwd: Path, kept: Path, num_gpus: int = 1, num_bytes: int | None = None,
    device: str = DEVICE, decided: str = "",
) -> Run:  # fmt: skip
    """Run a command on hollow GPUs without the watch; `kept` is an empty folder for what its processes took.

    Without a device it runs on the GPU that is here; convolutions have no workspaces, no message of a rank arrives, and
    `decided` is code that decides by hand what a library reads of the GPU.
    """
    size = f",bytes={num_bytes}" if num_bytes else ""
    asked = f"{device},count={num_gpus},context_bytes=0{size}" if device else ""
    places = (str(FOLDER / "control"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    began = time.monotonic()
    given = environment(kept, CONTROL=str(kept), GCPROF_HOLLOW=asked, GCPROF_CUDNN="hollow", CONTROL_DECIDED=decided,
                        PYTHONPATH=os.pathsep.join(filter(None, places)))  # fmt: skip
    done = subprocess.run(words, cwd=cwd, env=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    rows = [json.loads(path.read_text()) for path in kept.glob("*.json")]
    return Run(
        exit_code=done.returncode,
        said=done.stdout + done.stderr,
        seconds=time.monotonic() - began,
        figures=tuple(sorted(Figures(row["rank"] or "", row["peak"], row["reserved"]) for row in rows)),
    )


def rehearsed(
    words: tuple[str, ...], *options: str, cwd: Path, num_gpus: int = 1, device: str = DEVICE, cudnn: str = "hollow"
) -> Run:
    """Run a command under `gcprof rehearse`; PyTorch may take all of the memory, as in `control`."""
    with tempfile.TemporaryDirectory() as elsewhere:  # for the run folder
        given = ("--device", f"{device}:{num_gpus}", "--context", "0", "--json", "--quiet", "-o", f"{elsewhere}/run")
        run = answered("rehearse", *given, *options, command=words, cwd=cwd, cudnn=cudnn)
    rows = [row for variant in run.document.get("variants", ()) for row in variant["processes"]]
    return msgspec.structs.replace(run, figures=tuple(sorted(map(_figures, rows))))


def answered(*words: str, command: tuple[str, ...], cwd: Path, cudnn: str = "hollow") -> Run:
    """Run a verb of gcprof on a command; convolutions have no workspaces, unless NVIDIA's own cuDNN is asked for them."""
    began = time.monotonic()
    done = gcprof(*words, "--", *command, cwd=cwd, GCPROF_CUDNN=cudnn)
    seconds, document = time.monotonic() - began, json.loads(done.stdout or "{}")
    return Run(exit_code=done.returncode, said=done.stderr, seconds=seconds, document=document)


def gcprof(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of gcprof to its end, in the environment of a user, whose folder holds what is compiled."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "profiler", *words], cwd=cwd, env=environment(cwd, **more), capture_output=True,
        text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def _figures(row: dict[str, Any]) -> Figures:
    peak, reserved = (max(phase[name] for phase in row["phases"]) for name in ("peak_bytes", "reserved_bytes"))
    return Figures("" if row["rank"] is None else str(row["rank"]), peak, reserved)


def environment(compiled: Path | None = None, **more: str) -> dict[str, str]:
    """Return a user's own, in which `python` and `torchrun` are those of this environment.

    `compiled` is an empty folder for compiled code: what is in a cache is not tried out on the GPU, which takes memory.
    """
    if compiled:
        more["TORCHINDUCTOR_CACHE_DIR"] = str(compiled / "compiled")
    given = {name: value for name, value in os.environ.items() if not name.startswith(("GCPROF", "HOLLOW"))}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    places = os.pathsep.join(filter(None, (str(ROOT), given.get("PYTHONPATH", ""))))
    return {**given, "OMP_NUM_THREADS": "1", "PATH": path, "PYTHONPATH": places, **more}
