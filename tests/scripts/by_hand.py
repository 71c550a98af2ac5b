"""Scripts with PyTorch's own counters put in by hand: `_mark` ends the phase that was, and begins another.

It knows the watch's words for phases and nothing else of it: each line to put in stands in MARKS, beside which line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NamedTuple

IN_STEPS = ("forward", "backward", "after the backward", "optimizer", "after the step")
PRELUDE = """
import atexit as _atexit, json as _json, torch as _torch
_rows, _now = [], ["start", 0]

def _mark(phase, steps=0):
    if _torch.cuda.is_initialized() and _torch.cuda.memory_reserved():
        _rows.append([*_now, _torch.cuda.max_memory_allocated(), _torch.cuda.max_memory_reserved()])
        _torch.cuda.reset_peak_memory_stats()
    _now[:] = [phase, _now[1] + steps]

_atexit.register(lambda: (_mark("end"), print("PHASES", _json.dumps(_rows))))
"""
FORWARDS = """
def _forward(otherwise="evaluation"):
    _mark("forward" if _torch.is_grad_enabled() else otherwise)
"""
ON_CPU = """
import atexit as _atexit, hashlib as _hashlib, json as _json, os as _os, random as _random, torch as _torch, weakref as _weakref
_random.seed(0), _torch.manual_seed(0)
_phases, _now, _taken, _optimizers = [], ["start", 0], {}, []
_profile = _torch.profiler.profile(activities=[_torch.profiler.ProfilerActivity.CPU], profile_memory=True)
_profile.start()

def _mark(phase, steps=0):
    with _torch.profiler.record_function(f"MARK {len(_phases)}"):
        _phases.append([*_now])
    _now[:] = [phase, _now[1] + steps]

def _gradients(optimizer, model):
    if not any(optimizer is known() for known in _optimizers):
        _optimizers.append(_weakref.ref(optimizer))
    number = next(number for number, known in enumerate(_optimizers) if known() is optimizer)
    step = 1 + sum(key.startswith(f"{number}.") for key in _taken)
    if step <= 2:
        named = [(name, parameter.grad) for name, parameter in model.named_parameters()]
        _taken[f"{number}.{step}"] = {
            name: grad if grad is None else _hashlib.sha256(grad.numpy().tobytes()).hexdigest() for name, grad in named
        }

def _tell():
    _mark("end")
    _profile.stop()
    _profile.export_chrome_trace("trace.json")
    events = [event for event in _json.load(open("trace.json"))["traceEvents"] if "ts" in event]
    _os.remove("trace.json")
    rows, live, peak = [], 0, 0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        if event["name"] == "[memory]":
            live += event["args"]["Bytes"]
            peak = max(peak, live)
        elif event["name"].startswith("MARK "):
            rows.append([*_phases[int(event["name"].split()[1])], peak, 0])
            peak = live
    print("PHASES", _json.dumps(rows))
    print("GRADIENTS", _json.dumps(_taken))

_atexit.register(_tell)
"""
FORWARD, BACKWARD, OPTIMIZER = "_forward()", "_mark('backward')", "_mark('optimizer')"
AFTER_BACKWARD, AFTER_STEP = "_mark('after the backward')", "_mark('after the step', 1)"
STEP = [("loss.backward()", BACKWARD, AFTER_BACKWARD), ("optimizer.step()", OPTIMIZER, AFTER_STEP)]
MARKS = {  # of a script: how a line begins, what to put before it, and what after it
    "nanogpt_like": [
        *STEP,
        ("logits, loss = model(X, Y)", FORWARD, ""),
        ("logits, _ = self(idx", "_forward('generation')", ""),
    ],
    "vae": [
        *STEP,
        ("recon_batch, mu, logvar = model(data)", FORWARD, ""),
        ("sample = model.decode(sample)", FORWARD, ""),
    ],
    "gan": [
        ("output = netD(", FORWARD, ""),
        ("fake = netG(", FORWARD, ""),
        ("errD_real = criterion", FORWARD, ""),
        ("errD_fake = criterion", FORWARD, ""),
        ("errG = criterion", FORWARD, ""),
        ("errD_real.backward()", BACKWARD, AFTER_BACKWARD),
        ("errD_fake.backward()", BACKWARD, AFTER_BACKWARD),
        ("errG.backward()", BACKWARD, AFTER_BACKWARD),
        ("optimizerD.step()", OPTIMIZER, AFTER_STEP),
        ("optimizerG.step()", OPTIMIZER, "_mark('after the step')"),
        ("torch.save(", "_mark('saving')", "_mark('evaluation')"),
    ],
    "resume": [*STEP, ("loss = (model(x)", FORWARD, ""), ("torch.save(", "_mark('saving')", "_mark('after the step')")],
    "time_sequence": [
        *STEP[:1],
        ("optimizer = ", "", f"optimizer.register_step_post_hook(lambda *_: {AFTER_STEP})"),  # it still has the loss
        ("optimizer.step(closure)", OPTIMIZER, ""),
        ("out = seq(input)", FORWARD, ""),
        ("return loss", OPTIMIZER, ""),
        ("pred = seq(", FORWARD, ""),
    ],
    "wgan_gp": [
        ("fake_imgs = generator(z)", FORWARD, ""),
        ("validity = critic(", FORWARD, ""),
        ("(gradients,) = autograd.grad(", BACKWARD, ""),
        ("return ((gradients", AFTER_BACKWARD, ""),
        ("d_loss = ", FORWARD, ""),
        ("g_loss = ", FORWARD, ""),
        ("d_loss.backward()", BACKWARD, AFTER_BACKWARD),
        ("g_loss.backward()", BACKWARD, AFTER_BACKWARD),
        ("optimizer_D.step()", OPTIMIZER, AFTER_STEP),
        ("optimizer_G.step()", OPTIMIZER, "_mark('after the step')"),
        ("torch.save(", "_mark('saving')", "_mark('after the step')"),
    ],
    "imagenet_like": [
        *STEP,
        ("output = model(images)", FORWARD, ""),
        ("torch.save(", "_mark('saving')", "_mark('evaluation')"),
    ],
    "growing": [*STEP, ("output = model(x)", FORWARD, ""), ("outputs.append(model(x))", FORWARD, "")],
    "walls": [*STEP, ("outputs = model(inputs)", FORWARD, ""), ("return model(inputs)", FORWARD, "")],
}


class Row(NamedTuple):
    """One pass through a phase."""

    phase: str
    step: int
    peak_bytes: int
    reserved_bytes: int


OPTIMIZERS = {"gan": {"optimizerD": "netD", "optimizerG": "netG"}}  # each with its model; else optimizer and model


def marked_on_cpu(name: str, text: str) -> str:
    """Return the text of a script with its marks, under torch.profiler, and the digests of its first gradients."""
    for optimizer, model in OPTIMIZERS.get(name, {"optimizer": "model"}).items():
        step = f"{optimizer}.step()"
        assert step in text
        text = re.sub(
            rf"^( *){re.escape(step)}", rf"\1_gradients({optimizer}, {model})\n\g<0>", text, flags=re.MULTILINE
        )
    return marked(name, text, prelude=ON_CPU)


def marked(name: str, text: str, *, prelude: str = PRELUDE) -> str:
    """Return the text of a script with its marks; each of them is used at least once."""
    lines, used = [prelude, FORWARDS], Counter()
    for line in text.splitlines():
        code = line.lstrip()
        indent = line[: len(line) - len(code)]
        begins = next((mark for mark in MARKS[name] if code.startswith(mark[0])), ("", "", ""))
        used[begins[0]] += 1
        before, after = (f"{indent}{mark}" for mark in begins[1:])
        lines += [before, line, after]
    unused = [mark[0] for mark in MARKS[name] if not used[mark[0]]]
    assert not unused, unused
    return "\n".join(lines) + "\n"


def rows(said: str) -> list[Row]:
    """Return what a marked script printed of its phases."""
    (line,) = (line for line in said.splitlines() if line.startswith("PHASES "))
    return [Row(*row) for row in json.loads(line.removeprefix("PHASES "))]


def digests(said: str) -> dict[str, dict[str, str | None]]:
    """Return the digests that a script marked on the CPU printed, by optimizer and step: `0.1`."""
    (line,) = (line for line in said.splitlines() if line.startswith("GRADIENTS "))
    found: dict[str, dict[str, str | None]] = json.loads(line.removeprefix("GRADIENTS "))
    return found


def peaks(found: list[Row]) -> dict[str, int]:
    """Return the largest peak of each phase, of the first step apart from those of later ones."""
    most: dict[str, int] = {}
    for row in found:
        is_first = row.step == (1 if row.phase == "after the step" else 0) and row.phase in IN_STEPS
        key = _key(row.phase, is_first)
        most[key] = max(most.get(key, 0), row.peak_bytes)
    return most


def told(process: dict[str, Any]) -> dict[str, int]:
    """Return the same as `gcprof rehearse --json` says it."""
    return {_key(phase["name"], phase["is_first_step"]): phase["peak_bytes"] for phase in process["phases"]}


def _key(phase: str, is_first: bool) -> str:
    return f"first {phase}" if is_first else phase
