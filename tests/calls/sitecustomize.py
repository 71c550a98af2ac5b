"""Writes the stack of every call of a STATION, in each process of a run: first on PYTHONPATH in tests/test_paths.py."""

import os
import sys
from pathlib import Path

STATIONS = {tuple(word.split(":")) for word in os.environ["STATIONS"].split()}
NAMES = {name for _, name in STATIONS}
OURS = os.environ["OURS"]


def record(frame, event, argument):
    """The files of ours that are on the stack of a station's call, the outermost first, each with its function."""
    name = frame.f_code.co_name
    if event != "call" or name not in NAMES or not frame.f_code.co_filename.startswith(OURS):
        return
    if (frame.f_code.co_filename.removeprefix(OURS), name) not in STATIONS:
        return
    calls = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            calls.append(f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_code.co_name}")
        frame = frame.f_back
    with Path(os.environ["STACKS"]).open("a", encoding="utf-8") as file:
        file.write(" ".join(reversed(calls)) + "\n")


sys.setprofile(record)
