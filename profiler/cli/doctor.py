"""gcprof doctor: versions, devices, and whether a trial works on each."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import say_json
from profiler.core.errors import UserError, refuse_idle
from profiler.core.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from profiler.core.record import Environment
    from profiler.engines import Engine


FACTS = ("device_name", "device_bytes", "driver", "cuda", "num_threads")  # of each device


def doctor(
    json: options.Json = False,
    paste: Annotated[bool, typer.Option("--paste", help="Print a block to paste into an issue.")] = False,
) -> None:
    """Show versions, and run a tiny trial on each device. It also checks the arithmetic of each device.

    Ends with 1 if a trial fails or the arithmetic is wrong, 3 if torch does not work.

    Example: gcprof doctor
    """
    from profiler import engines
    from profiler.core.case import Case, Choice, Trial
    from profiler.engines.local import rehearsal

    if json:
        refuse_idle({"--paste": paste}, "with --json")
    tiny = Case(model=Choice("mlp"), strategy=Choice("none"), optimizer=Choice("sgd"), batch_size=8, device="cpu")
    with engines.connect() as engine:
        devices: dict[str, Environment] = engine.survey()
        trials = {name: next(engine.run([Trial(case=msgspec.structs.replace(tiny, device=name))])) for name in devices}
        wrong = {name: _wrong(engine, name) for name in devices}
    findings: dict[str, Any] = {
        "versions": _versions(),
        "devices": {name: {fact: getattr(devices[name], fact) for fact in FACTS} for name in devices},
        "trials": {name: record.detail or record.outcome for name, record in trials.items()},
        "arithmetic": {name: text or "right" for name, text in wrong.items()},
        "start_seconds": {name: record.stage_seconds.get("start") for name, record in trials.items()},
        "rehearsal": rehearsal(),
    }
    if json:
        say_json(findings)
    elif paste:
        from profiler.views.export.markdown import fenced
        from profiler.views.redaction import hidden

        print(fenced(hidden(line) for line in _lines(findings)))  # for an issue: no host, no user, no folder
    else:
        print("\n".join(_lines(findings)))
    raise typer.Exit(int(any(wrong.values()) or any(record.outcome != "ok" for record in trials.values())))


def _wrong(engine: Engine, device: str) -> str | None:
    """Return what the device computes wrongly, or why it cannot compute; None if its arithmetic is right."""
    from profiler.engines import WORKER

    try:
        wrong: str | None = engine.ask(f"{WORKER}:compute", device, failing="it does not compute")["wrong"]
    except UserError as error:
        return error.message
    return wrong


def _versions() -> dict[str, str | None]:
    from profiler import __version__

    packages = ("torch", "torchvision", "typer", "rich", "pandas", "matplotlib", "msgspec", "psutil", "nvidia-ml-py")
    installed = {str(one.metadata["Name"]).lower(): one.version for one in metadata.distributions()}
    return {
        "gcprof": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: installed.get(name) for name in packages},
    }


def _lines(findings: dict[str, Any]) -> list[str]:
    lines = [f"{name:14} {version or 'not installed'}" for name, version in findings["versions"].items()]
    for name, facts in findings["devices"].items():
        driver = f", driver {facts['driver']}" if facts["driver"] else ""
        started = seconds_text(findings["start_seconds"][name])
        lines += [
            f"{name:14} {facts['device_name']}, {bytes_text(facts['device_bytes'])}{driver}",
            f"{'':14} a tiny trial: {findings['trials'][name]}; a fresh process in {started}",
            f"{'':14} arithmetic: {findings['arithmetic'][name]}",
        ]
    if len(findings["devices"]) == 1:
        lines.append("no CUDA device: torch sees none, so `gcprof run` measures the CPU")
    lines.append(f"{'rehearsal':14} {findings['rehearsal']}")
    return lines
