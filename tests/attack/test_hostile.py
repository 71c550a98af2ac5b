"""A run folder of a stranger against every command that opens it: nothing that it names is opened, resolved or run."""

import ast
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import sys
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Case, Trial, encode
from profiler.runs import store
from profiler.workflows import resume
from tests import examples, make

SECRET = "root:x:0:0:this is nobody's business"
EVIL = 'open({mark!r}, "w").close()\ndef make(*words, **options):\n    raise SystemExit("sprung")\n'
WORDS = {  # each kind of word that leads somewhere
    "module": "evilpkg:make",
    "inner module": "evilpkg.sub:make",
    "file": "{here}/outside/evil.py:make",
    "file of the folder": "base/evil.py:make",
    "file above": "../{name}/outside/evil.py:make",
    "adapter": "*:base/evil.py:make",
    "name of ours as a module": "mlp:make",
    "repository": "hf:evil/kernel",
    "repository of timm": "timm:hf-hub:evil/model",
    "kernels of a repository": "hf:bert:_attn_implementation=evil/kernel",
    "code of a repository": "hf:bert:auto_map=evilpkg.sub,trust_remote_code=true",
    "weights": "hf:bert:use_pretrained_backbone=true,backbone=evil/model",
    "module as an option": "torch:SGD:lr=evilpkg.sub:make",
    "file as an option": "mlp:file={here}/outside/secret.json",
    "plan": "plan:file={here}/outside/secret.json",
    "plan that is a pipe": "plan:file={here}/outside/pipe",
    "pipe": "{here}/outside/pipe.py:make",
    "operators of a file": "selective:save=../outside/secret.json",
}
CHOICES = ("model", "strategy", "optimizer", "parallel")  # the fields of a case that can lead to code
FIELDS = (*CHOICES, "blocks", "data", "precision", "verify", "device")


def word(kind: str, here: Path) -> str:
    return WORDS[kind].format(here=here, name=here.name)


def folder(path: Path, **fields: str) -> Path:
    """A run folder with a hostile word in these fields of every case: one trial is done, and one is owed."""
    raw = [json.loads(encode(make.case("none", model="mlp", batch_size=size))) | fields for size in (64, 32)]
    none, owed = (msgspec.convert(one, Case, dec_hook=lambda kind, text: kind(text)) for one in raw)
    examples.run(path, [make.record(case=none)], more=(Trial(case=owed),))
    evil = EVIL.format(mark=str(path.parent / "sprung"))
    (path / "evil.py").write_text(evil)
    forge(path, sources={f"{path}/evil.py": store.digest(evil.encode())})  # as if the code were known
    return path


def forge(path: Path, **fields: object) -> None:
    """The manifest says something else."""
    (path / "manifest.json").write_bytes(encode(msgspec.structs.replace(store.load(path).manifest, **fields)))


READING = {
    "show": ("show", "base"),
    "document": ("show", "base", "--json"),
    "report": ("report", "base", "-o", "report.html"),
    "compare": ("compare", "base", "base2"),
    "export": ("export", "base", "--to", "json"),
    "merge": ("merge", "base", "base2", "-o", "merged"),
}
RUNNING = {
    "explain": ("explain", "base"),
    "timeline": ("timeline", "base", "--strategies", "all", "-o", "timeline.png"),
    "resume": ("run", "--resume", "base"),
    "resume, half named": ("run", "--resume", "base", "--model", "mlp"),
    "new run": ("run", "--resume", "base", "--new-run", "-o", "new"),
}
KEYS = ("model", "strategies", "optimizer", "parallel", "data", "precision", "verify", "device")
SAMPLE = 1 if os.environ.get("GCPROF_ATTACK") == "whole" else 18  # one of so many
LIMIT_SECONDS = 60
PROCESSES = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty", "os.spawn")
SOCKETS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo")
SEEN: list[tuple[str, str]] = []
sys.addaudithook(  # a hook cannot be taken away: there is one
    lambda event, arguments: (
        SEEN.append((event, str(arguments[0]) if arguments else ""))
        if event in ("open", "import", *PROCESSES, *SOCKETS)
        else None
    )
)


def combinations(*axes: Any) -> list[Any]:
    """A sample of all of them, which does not change from one day to the next; with `just attack` every one."""
    return [
        pytest.param(*names, id="-".join(names))
        for names in product(*axes)
        if zlib.crc32("|".join(names).encode()) % SAMPLE == 0
    ]


@pytest.fixture
def planted(here: Path, no_server: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in where all that is hostile leads somewhere; what waits for a pipe is ended."""
    evil = EVIL.format(mark=str(here / "sprung"))
    for name in ("evilpkg/__init__.py", "evilpkg/sub.py", "outside/evil.py", "mlp.py", "evil.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(evil)
    (here / "outside" / "secret.json").write_text(SECRET)
    for name in ("pipe", "pipe.py"):  # without a writer
        os.mkfifo(here / "outside" / name)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a disk takes longer than all else here
    monkeypatch.syspath_prepend(here)
    find_spec = importlib.util.find_spec
    named: list[str] = []  # which only a file can have said
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: named.append(name) or find_spec(name, *of))
    before = signal.signal(signal.SIGALRM, lambda *of: pytest.fail("it waits for ever"))
    signal.alarm(LIMIT_SECONDS)
    yield here
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert [name for name in named if "evil" in name] == []


def harmless(words: tuple[str, ...], here: Path, capsys: Any) -> tuple[int, str]:
    """What a command ends with and says; it does nothing of all that is watched."""
    SEEN.clear()
    code = answer(list(words))
    seen = SEEN[:]
    out, err = capsys.readouterr()
    outside = str(here / "outside")
    assert not [
        (event, name)
        for event, name in seen
        if event in (*PROCESSES, *SOCKETS) or "evil" in name or name.startswith(outside) or name == "mlp"
    ]
    assert SECRET not in out + err
    assert not (here / "sprung").exists()
    return code, out + err


@pytest.mark.parametrize(
    ("field", "kind", "command"), [*combinations(FIELDS, WORDS, READING), *combinations(CHOICES, WORDS, RUNNING)]
)
def test_a_word_of_a_folder_is_shown_and_refused_where_it_would_be_run(field, kind, command, planted, capsys):
    for name in ("base", "base2"):
        folder(planted / name, **{field: word(kind, planted)})

    code, told = harmless((READING | RUNNING)[command], planted, capsys)

    assert code in ((0, 4) if command in READING else (2,)), told  # 4: some cannot be merged or compared
    refusals = ("gcprof does not run code just because a run folder names it", "is not a row of this run")
    assert command in READING or any(text in told for text in refusals)
    assert not (planted / "new").exists()


@pytest.mark.parametrize(("key", "kind"), combinations(KEYS, WORDS))
def test_a_word_of_a_sweep_file_is_refused(key, kind, planted, capsys):
    (planted / "sweep.toml").write_text(f'{key} = "{word(kind, planted)}"\n')

    code, told = harmless(("run", "--config", "sweep.toml", "--dry-run"), planted, capsys)

    assert code == 2, told


@pytest.mark.parametrize("kind", ["plan", "file"])
@pytest.mark.parametrize("command", RUNNING)
def test_a_refusal_is_the_same_whether_a_file_is_there_or_not(kind, command, planted, capsys):
    said = []
    for place in ("/outside/", "/nowhere/"):
        named = word(kind, planted).replace("/outside/", place)
        shutil.rmtree(planted / "base", ignore_errors=True)
        folder(planted / "base", model=named, strategy=named)
        code, told = harmless(RUNNING[command], planted, capsys)
        said.append((code, told.replace(place, "")))

    assert said[0] == said[1]


def test_a_plan_of_the_folder_itself_needs_no_naming_unless_it_leads_elsewhere(planted):
    plan = planted / "base" / "plans" / "one.json"
    folder(planted / "base", strategy="plan:file=base/plans/one.json")
    plan.parent.mkdir()
    case = store.load(planted / "base").manifest.plan[0].case

    plan.symlink_to(planted / "outside" / "secret.json")
    assert "strategy" in resume.unnamed_words([case], folder=planted / "base", named={})
    plan.unlink()
    plan.write_text("{}")
    assert resume.unnamed_words([case], folder=planted / "base", named={}) == {}


OBEYED = "a\x9b31mb\x85c\u2028d\u2029e\u202ef\u2066g\u200fh\U000e0041i\x7fj\x1b]0;t\x07k\ufeffl"
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of our own tables


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["show base", "show base --json", "compare base base2 --format csv", "export base --to latex"]
)
def test_no_character_that_a_terminal_obeys_is_printed_there(words, here, monkeypatch):
    for name in ("base", "base2"):  # wherever a text is free
        case = make.case(model=f"mlp{OBEYED}", blocks=OBEYED, precision=OBEYED)
        records = [make.record(case=case, detail=OBEYED), make.failed("all", "crashed", OBEYED)]
        environment = msgspec.structs.replace(examples.ENVIRONMENT, device_name=OBEYED)
        forge(examples.run(here / name, records).folder, command=OBEYED, environment=environment)
    buffer = io.BytesIO()
    stdout = io.TextIOWrapper(buffer, encoding="utf-8", newline="")
    monkeypatch.setattr(stdout, "isatty", lambda: True)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert answer(words.split()) in (0, 4)

    told = COLOURS.sub("", buffer.getvalue().decode())
    assert [character for character in told if not character.isprintable() and character not in "\n\t"] == []
    assert "json" not in words or json.loads(told)


@pytest.mark.parametrize("place", ["manifest.json", "trials.jsonl"])
@pytest.mark.parametrize("command", READING)
def test_a_link_in_a_folder_shows_nothing_of_what_it_leads_to(place, command, planted, capsys):
    private = examples.run(planted / "outside" / "private", [make.record(case=make.case(model="nobodys-business"))])
    for name in ("base", "base2"):
        folder(planted / name)
    (planted / "base" / place).unlink()
    (planted / "base" / place).symlink_to(private.folder / place)

    code = answer(list(READING[command]))

    out, err = capsys.readouterr()
    assert code in (0, 4), out + err
    assert "nobodys-business" not in out + err


@pytest.mark.slow
def test_a_name_of_a_stage_is_a_text_of_the_code(here, capsys):
    def shape(name: str) -> str:
        """The program that is emitted for six stages of this name, without its constants."""
        costs = {"forward_seconds": 1.0, "backward_seconds": 1.0, "output_bytes": 1, "saved_bytes": 100}
        costs |= {"forward_extra_bytes": 0, "backward_extra_bytes": 0}
        names = [f"{name}{index}" for index in range(6)]
        stages = [{"name": one, **costs, "blocks": [{"name": one, "parameters": [name]}]} for one in names]
        (here / "stages.json").write_text(json.dumps({"input_bytes": 1, "stages": stages}))
        assert answer(["plan", "--stages", "stages.json", "--budget", "60%", "--emit", "python"]) == 0
        tree = ast.parse(capsys.readouterr().out)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                node.value = None
        return ast.dump(tree)

    for name in ('x"]); open("sprung", "w"); ([("', "x\\", "x\u2028open('sprung')", "{open('sprung', 'w')}"):
        assert shape(name) == shape("layer")
