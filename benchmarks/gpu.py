"""The first minutes on a GPU, in the order of their worth: `just gpu [FOLDER]`, or `python3 -m benchmarks gpu FOLDER`.

Nothing is installed there: if msgspec is missing, it is found in build/gpu-site, which `just gpu-packages` fills. Each
step has its own limit and prints to files of its own. After each, all that is there goes into FOLDER/evidence.tar.gz,
so that a run that is cut off loses one step at most; none stops another. The steps of the first call fit into its
seconds, those that follow are for a second one (`--only tests,compiled`). What needs no device is not done there:
`python -m benchmarks gpu_rows rows.jsonl --against` rehearses and predicts the same steps elsewhere.
On a hollow device (`GCPROF_HOLLOW=h100`) all this is a dry run, which takes some `--patience`, or is `--small`.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks import GCPROF, ROOT

SECONDS = 570.0  # of the first call, where a call may take 600
LATER = ("tests", "compiled")  # for a second call
LEAST_SECONDS = 12.0  # left, for a step to begin
GRACE_SECONDS = 5.0  # between an interrupt, after which pytest lists what failed, and the end
SHOWN = 12  # last lines of each output
ENVIRONMENT = {
    **{"PYTHONUNBUFFERED": "1", "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"},
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1"),
}
STARTS = {  # of commands, by their first word
    "gcprof": GCPROF,
    "python": (sys.executable,),
    "pytest": (sys.executable, *["-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-m", "gpu"]),
}
BYTES = "tests/test_predict.py tests/test_leaks.py tests/test_equality.py"
IMPORTED = "import transformers, torchvision.models, timm, accelerate, torch._dynamo"
BERT = "hf:bert:head=classification,sequence=128 --batch-size 64 --optimizer adamw"
COMPILED = "transformer:layers=4,width=256 --strategies all,compile-budget"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the archive goes")
    parser.add_argument("--only", default="", help="steps, by commas")
    parser.add_argument("--patience", type=float, default=1.0, help="times as many seconds, for a dry run")
    parser.add_argument("--small", action="store_true", help="small models: a dry run")
    asked = parser.parse_args()
    until = time.monotonic() + SECONDS * asked.patience
    asked.folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="gcprof-gpu-"))
    codes: list[int] = []
    every = steps(work, patience=asked.patience, small=asked.small)
    assert sum(seconds for seconds, commands in every if next(iter(commands)) not in LATER) <= SECONDS
    for seconds, commands in every:
        name = next(iter(commands))
        if asked.only and name not in asked.only.split(","):
            continue
        left = until - time.monotonic() - GRACE_SECONDS
        if left < LEAST_SECONDS:
            _note(work, f"{name} left out: {left:.0f} s are left")
        else:
            codes += run(commands, work, min(seconds * asked.patience, left))
        new = asked.folder / ".evidence.tar.gz"
        with tarfile.open(new, "w:gz", compresslevel=1) as archive:
            archive.add(work, "evidence")
        new.replace(asked.folder / "evidence.tar.gz")  # which is a whole one at any time
    return int(any(codes))


def steps(work: Path, *, patience: float, small: bool) -> list[tuple[float, dict[str, str]]]:
    """What is run, in order: seconds, and commands side by side by the name of their output, the first the step's.

    The rows and the tests beside them are of bytes, which neighbors leave as they are.
    """
    sweep = "--model mnist-cnn:channels=8 --batch-size 8" if small else ""
    bytes_tests = "-n 0 tests/test_predict.py -k static_bytes" if small else f"-n 5 --dist worksteal {BYTES}"
    published = "--predict" if small else "--device cuda:0"
    plan = "transformer:layers=4,width=256 --batch-size 16" if small else BERT
    tests = "tests/test_gpu.py -k bare_loop" if small else "tests/test_gpu.py"
    rows = f"python -m benchmarks gpu_rows {work}/rows.jsonl --seconds {75 * patience}"
    return [
        (45, {
            "facts": "python -m benchmarks gpu_rows --facts cuda:0",
            "imports": f"python -c '{IMPORTED}'",  # read from a cold disk
            "environment": "python -m torch.utils.collect_env",
        }),
        (110, {"sweep": f"gcprof run {sweep} --segments 1,2,4,8,16,32 --predict --device cuda:0 -o {work}/sweep"}),
        (110, {"rows": f"{rows} --most 3 --workers 2" if small else rows, "tests-bytes": f"pytest {bytes_tests}"}),
        (100, {"bert": f"gcprof reproduce bert {published} -o {work}/bert"}),
        # which a hollow device refuses
        *([] if small else [(40, {"trainer": f"gcprof reproduce hf-trainer --device cuda:0 -o {work}/trainer"})]),
        (65, {"resnet152": f"gcprof reproduce resnet152 {published} -o {work}/resnet152"}),
        (60, {"plan": f"gcprof plan {plan} --device cuda:0 --budget 75% --rounds 1 -o {work}/plan.json"}),
        (60, {"tests": f"pytest -n 0 {tests}"}),
        (45, {"compiled": f"gcprof run {COMPILED} --rounds 1 --device cuda:0 -o {work}/compiled"}),
    ]  # fmt: skip


def run(commands: dict[str, str], work: Path, seconds: float) -> list[int]:
    """The exit codes of a step's commands; all are interrupted and then killed when the seconds are over."""
    began = time.monotonic()
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": path, "MPLCONFIGDIR": str(work / "matplotlib")}
    environment = {"HOME": str(work), **os.environ, **ENVIRONMENT, **own}
    limit, started = ("timeout", "--signal=INT", f"--kill-after={GRACE_SECONDS}", str(seconds)), {}
    for name, command in commands.items():
        first, *words = shlex.split(command)
        with (work / f"{name}.txt").open("wb") as output:
            started[name] = subprocess.Popen(
                (*limit, *STARTS[first], *words), cwd=ROOT if name.startswith("tests") else work, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
    for name, process in started.items():
        _note(work, f"{name}: exit code {process.wait()}, {time.monotonic() - began:.0f} s of {seconds:.0f}")
        print("\n".join((work / f"{name}.txt").read_text(errors="replace").splitlines()[-SHOWN:]), flush=True)
    return [process.returncode for process in started.values()]


def _note(work: Path, line: str) -> None:
    print(f"== {line}", flush=True)
    with (work / "steps.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


if __name__ == "__main__":  # as the machine with the GPU has been told to call it
    sys.exit(main())
