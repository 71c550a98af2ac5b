"""What operators ask PyTorch's CUDA allocator for, against their traces: `just bench-operators --hollow h100`.

PyTorch's own samples of each operator, and larger ones of those that training steps use, run forward and backward by
PyTorch's CUDA build on a device that has memory and does no arithmetic, and are traced as predictions for that device
are. The most bytes that are live at once are compared, and the requests of at least 4 KiB. Fails where a common
operator is further off than the bound and not KNOWN.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.operators_common import COMMON
from profiler.rehearsal.device import ASKED, prepare_if_asked

SAMPLES = 6  # of each operator and type, spread over those that it has
SHARES = 2  # processes at once
SMALL = 4096  # bytes: smaller requests are not compared, nor are smaller differences beyond the bound
BOUND = 0.01  # of the real peak
BEGUN = '{"begun"'
KNOWN = {
    "prod": "its backward looks for zeros in the data",
    "cumprod": "its backward counts zeros: the sum of a mask takes a copy of it as whole numbers",
    "max.reduction_no_dim": "one mask of its backward is written in place on CUDA only",
    "min.reduction_no_dim": "one mask of its backward is written in place on CUDA only",
    "sort": "what sorting takes besides its results is left out",
    "argsort": "what sorting takes besides its results is left out",
    "__getitem__": "its backward sorts the indices, 8 bytes each in several lists",
    "nn.functional.rms_norm": "in half precision CUDA has one fused kernel, and the trace does it in steps",
    "nn.functional.conv_transpose2d": "a wide output padding is not for cuDNN: products are run, with workspaces",
    "nn.functional.conv_transpose3d": "a wide output padding is not for cuDNN: products are run, with workspaces",
    "nn.functional.scaled_dot_product_attention": "causal, of fewer queries than keys, is not for the flash kernel",
}
Outcome = dict[str, Any]  # a line of benchmarks.operators_worker


def main(device: str, minutes: float, names: list[str]) -> int:
    """Run all shares, print what they found; 1 where a common operator is off and not known, or a share broke."""
    os.environ[ASKED] = device
    prepare_if_asked()
    with ThreadPoolExecutor(SHARES) as threads:
        shares = list(threads.map(lambda share: _outcomes(share, minutes, names), range(SHARES)))
    outcomes = [one for lines, _ in shares for one in lines]
    broken = [text for _, text in shares if text]
    compared = [one for one in outcomes if "real" in one]
    print(f"{len({one['name'] for one in compared})} operators, {len(compared)} samples compared on {device}")
    _print_left_out(outcomes)
    wrong = _print_unlike(compared)
    for text in broken:
        print(text)
    return int(not compared or bool(wrong) or bool(broken))


def _outcomes(share: int, minutes: float, names: list[str]) -> tuple[list[Outcome], str | None]:
    """What a child tells; and what it died of, if it did."""
    words = (str(share), str(SHARES), str(60 * minutes), str(SAMPLES), *names)
    command = [sys.executable, "-m", "benchmarks.operators_worker", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    outcomes = [json.loads(one) for one in lines if not one.startswith(BEGUN)]
    if done.returncode == 0:
        return outcomes, None
    last = (lines or done.stderr.splitlines() or [""])[-1]
    return outcomes, f"a share ended with status {done.returncode}, the last it said: {last}"


def _print_left_out(outcomes: list[Outcome]) -> None:
    for reason, count in Counter(one["left_out"] for one in outcomes if "left_out" in one).most_common():
        print(f"left out: {count} samples: {reason}")
    untraced = [one for one in outcomes if "untraced" in one]
    print(f"not traced: {len(untraced)} samples")
    for (name, told), count in Counter((one["name"], one["untraced"]) for one in untraced).items():
        if name in COMMON:
            print(f"  {name}: {count}: {told}")
    for one in outcomes:
        if "ended" in one:
            print(f"a share ended at {one['name']} {one['ended']}")


def _print_unlike(compared: list[Outcome]) -> set[str]:
    """One line for each operator beyond the bound; returns those that are common and not known."""
    found: dict[str, list[Outcome]] = {}
    for one in compared:
        found.setdefault(one["name"], []).append(one)
    for is_common in (True, False):
        names = [name for name in found if (name in COMMON) == is_common]
        counts = [sum(map(test, (one for name in names for one in found[name]))) for test in (_is_exact, _is_off)]
        total = sum(len(found[name]) for name in names)
        kind = "common" if is_common else "other"
        print(f"{len(names)} {kind} operators, {total} samples: {counts[0]} exact, {counts[1]} beyond the bound")
    off = [name for name, own in found.items() if any(map(_is_off, own))]
    for name in sorted(off, key=lambda name: (name not in COMMON, name)):
        reason = KNOWN.get(name, "NOT KNOWN") if name in COMMON else "not common"
        print(f"{name}: {reason}; {_described(found[name])}")
    return {name for name in off if name in COMMON and name not in KNOWN}


def _described(own: list[Outcome]) -> str:
    unlike = [one for one in own if not _is_exact(one)]
    asked = sum(any(size >= SMALL for size in one["only_real"] + one["only_traced"]) for one in own)
    worst = max(unlike, key=lambda one: abs(one["traced"] - one["real"]))
    return (
        f"{len(own)} samples, {len(unlike)} unlike, {sum(map(_is_off, own))} beyond the bound, {asked} with other "
        f"requests; the worst {worst['traced']:,} bytes for {worst['real']:,}: {worst['sample']}"
    )


def _is_exact(one: Outcome) -> bool:
    return bool(one["traced"] == one["real"])


def _is_off(one: Outcome) -> bool:
    return bool(abs(one["traced"] - one["real"]) > max(BOUND * one["real"], SMALL))
