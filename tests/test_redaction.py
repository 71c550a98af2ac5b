"""What tells of a machine or of a person is found in texts, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core.record import Note
from profiler.views.redaction import hidden
from tests import examples, make

HERE = str(Path.home() / "secret" / "project" / "train.py")
NUMBER = "GPU-3f9a1c22-77aa-4be1-9c1d-0123456789ab"
SHAPED = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
TELLING = [
    ("open /home/alice failed", "open [path] failed"),
    ("open ~/x/train.py:12 failed", "open [path]/train.py:12 failed"),
    ("/home/alice/work/train.py:make", "[path]/train.py:make"),
    ("cannot open '/home/alice/x/y.bin': no", "cannot open [path]/y.bin: no"),
    (f"File {HERE}, line 3", "File [path]/train.py, line 3"),
    ("../up/here.py and ./here/there.py", "[path]/here.py and [path]/there.py"),
    ("error:/tmp/deep/file", "error:[path]"),
    (r"C:\Users\alice\y.py", "[path]/y.py"),
    ("~bob/y.py", "[path]/y.py"),
    (r"\\server\share\alice", "[path]"),
    ("//srv/alice/a.py", "[path]/a.py"),
    ("src/alice/a.py", "[path]/a.py"),
    ("--data=/mnt/alice", "--data=[path]"),
    ("told alice@example.org", "told [hidden]"),
    (f"on {NUMBER}", "on [hidden]"),
    (f"with {SHAPED}", "with [hidden]"),
    ("see file:///home/alice/a.txt", "see [path]/a.txt"),
    ("see file:///home/alice/a b.py", "see [path]/b.py"),
    ("cp /srv/alice/a.py b.py", "cp [path]/a.py b.py"),
    ("https://alice:tr0ub4dor@example.org/a/b.html", "[path]/b.html"),
    ('File "/srv/alice/a b/net.py", line 3', "File [path]/net.py, line 3"),
    ("open 'src/alice b/net.py'", "open [path]/net.py"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "told"), TELLING)
def test_of_a_path_only_the_name_of_a_file_is_told(text: str, told: str):
    assert hidden(text) == told
    assert hidden(told) == told


@pytest.mark.parametrize("words", [["show", "--format", "md"], ["report", "-o", "page.html"]])
def test_a_block_and_a_report_hide_the_same(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]):
    detail = ", ".join(text for text, _ in TELLING)
    notes = (Note(code="GCP007", text=detail),)
    case = make.case("all", model=r"C:\Users\alice\net.py:make")
    records = [make.record("none"), make.failed("all", "failed", detail, case=case, notes=notes)]
    examples.run(here / "results" / "run", records)

    assert answer(words) == 0

    shown = capsys.readouterr().out + "".join(path.read_text() for path in here.glob("page.html"))
    assert [word for word in ("alice", "bob", "tr0ub4dor", SHAPED, NUMBER, "share", "secret") if word in shown] == []
    assert json.dumps("net.py:make").strip('"') in shown
