"""A run folder of a stranger against every command that opens it: nothing that it names is opened, resolved or run."""

import ast
import importlib.util
import io
import json
import os
import re
import signal
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.core.case import Case, Trial, encode
from profiler.core.record import Record
from profiler.runs import store
from profiler.workflows import consent
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
    "kernels without underscore": "hf:bert:attn_implementation=evil/kernel",
    "code of a repository": "hf:bert:auto_map=evilpkg.sub,trust_remote_code=true",
    "weights": "hf:bert:use_pretrained_backbone=true,backbone=evil/model",
    "module as an option": "torch:SGD:lr=evilpkg.sub:make",
    "file as an option": "mlp:file={here}/outside/secret.json",
    "plan": "plan:file={here}/outside/secret.json",
    "plan that is a pipe": "plan:file={here}/outside/pipe",
    "pipe": "{here}/outside/pipe.py:make",
    "folder": "{here}/outside",
    "operators of a file": "selective:save=../outside/secret.json",
}
CHOICES = ("model", "strategy", "optimizer", "parallel")  # the fields of a case that can lead to code
FIELDS = (*CHOICES, "blocks", "data", "precision", "verify", "device")


def word(kind: str, here: Path) -> str:
    return WORDS[kind].format(here=here, name=here.name)


def plant(here: Path) -> None:
    """What the words lead to: code that leaves a mark, a file that nothing may show, and pipes without a writer."""
    evil = EVIL.format(mark=str(here / "sprung"))
    for name in ("evilpkg/__init__.py", "evilpkg/sub.py", "outside/evil.py", "mlp.py", "evil.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(evil)
    (here / "outside" / "secret.json").write_text(SECRET)
    for name in ("pipe", "pipe.py"):
        os.mkfifo(here / "outside" / name)


def folder(path: Path, **fields: str) -> Path:
    """A run folder with a hostile word in these fields of every case: one trial is done, and one is owed."""
    none, owed = (_case(size, fields) for size in (64, 32))
    records: list[Record] = [make.record(case=none)]
    examples.run(path, records, more=(Trial(case=owed),))
    evil = EVIL.format(mark=str(path.parent / "sprung"))
    (path / "evil.py").write_text(evil)
    forge(path, sources={f"{path}/evil.py": store.digest(evil.encode())})  # as if the code were known
    return path


def _case(batch_size: int, fields: dict[str, str]) -> Case:
    """A case as it would be read."""
    raw = msgspec.json.decode(encode(make.case("none", model="mlp", batch_size=batch_size)))
    case: Case = msgspec.convert({**raw, **fields}, Case, dec_hook=lambda kind, text: kind(text))
    return case


def forge(path: Path, **fields: object) -> None:
    """The manifest says something else."""
    forged = msgspec.structs.replace(store.load(path).manifest, **fields)
    (path / "manifest.json").write_bytes(encode(forged))


READING = {
    "show": ("show", "base"),
    "document": ("show", "base", "--json"),
    "report": ("report", "base", "-o", "report.html"),
    "compare": ("compare", "base", "base2"),
    "export": ("export", "base", "--to", "json"),
    "validate": ("validate", "base"),
    "merge": ("merge", "base", "base2", "-o", "merged"),
    "list": ("list", "--folder", "."),
}
RUNNING = {
    "explain": ("explain", "base"),
    "timeline": ("timeline", "base", "--strategies", "all", "-o", "timeline.png"),
    "resume": ("run", "--resume", "base"),
    "resume, half named": ("run", "--resume", "base", "--model", "mlp"),
    "new run": ("run", "--resume", "base", "--new-run", "-o", "new"),
}
SAMPLE = 18  # one of so many
IS_WHOLE = os.environ.get("GCPROF_ATTACK") == "whole"
LIMIT_SECONDS = 60


def combinations(*axes: Any) -> list[Any]:
    """A sample of all of them, which does not change from one day to the next; with `just attack` every one."""
    every: list[tuple[str, ...]] = [()]
    for axis in axes:
        every = [(*before, name) for before in every for name in axis]
    return [pytest.param(*names, id="-".join(names)) for names in every if IS_WHOLE or _is_in_sample(names)]


def _is_in_sample(names: tuple[str, ...]) -> bool:
    return zlib.crc32("|".join(names).encode()) % SAMPLE == 0


@contextmanager
def limited() -> Iterator[None]:
    """What waits for a pipe is ended."""
    before = signal.signal(signal.SIGALRM, lambda *of: pytest.fail("it waits for ever"))
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


PROCESSES = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty", "os.spawn")
SOCKETS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo")
EVENTS = ("open", "import", *PROCESSES, *SOCKETS)

_seen: list[tuple[str, str]] | None = None
_is_hooked = False


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if _seen is not None and event in EVENTS:
        _seen.append((event, str(arguments[0]) if arguments else ""))


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Every event of these as its name and its first argument; a hook cannot be taken away, so there is one."""
    global _seen, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_look)
        _is_hooked = True
    _seen = seen = []
    try:
        yield seen
    finally:
        _seen = None


KEYS = ("model", "strategies", "optimizer", "parallel", "data", "precision", "verify", "device")


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    with limited():
        yield


@pytest.fixture
def planted(here: Path, no_server: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in where all that is hostile leads somewhere."""
    plant(here)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a disk takes longer than all else here
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(importlib.util, "find_spec", _asked_of(importlib.util.find_spec))
    return here


def _asked_of(find_spec: Any) -> Any:
    """The same, which fails for a name that only a file can have said."""

    def find(name: str, package: str | None = None) -> Any:
        assert "evil" not in name, f"find_spec({name!r})"
        return find_spec(name, package)

    return find


def refused(words: tuple[str, ...], here: Path, capsys: Any) -> tuple[int, str, list[tuple[str, str]]]:
    """What a command ends with and says, and what it did of all that is watched."""
    capsys.readouterr()
    with watched() as seen:
        code = answer(list(words))
    out, err = capsys.readouterr()
    outside = str(here / "outside")
    harm = [
        (event, name)
        for event, name in seen
        if event in (*PROCESSES, *SOCKETS) or "evil" in name or name.startswith(outside) or name == "mlp"
    ]
    assert SECRET not in out + err
    assert not (here / "sprung").exists()
    return code, out + err, harm


@pytest.mark.parametrize(("field", "kind", "command"), combinations(FIELDS, WORDS, READING))
def test_a_word_of_a_folder_is_shown_and_nothing_more(field, kind, command, planted, capsys):
    for name in ("base", "base2"):
        folder(planted / name, **{field: word(kind, planted)})

    code, told, harm = refused(READING[command], planted, capsys)

    assert harm == []
    assert code in (0, 4), told  # 4: merging or comparing refuses what it cannot compare


@pytest.mark.parametrize(("field", "kind", "command"), combinations(CHOICES, WORDS, RUNNING))
def test_a_word_of_a_folder_is_refused_where_it_would_be_run(field, kind, command, planted, capsys):
    folder(planted / "base", **{field: word(kind, planted)})

    code, told, harm = refused(RUNNING[command], planted, capsys)

    assert harm == []
    assert code == 2, told
    assert "gcprof does not run code just because a run folder names it" in told or "is not a row of this run" in told
    assert not (planted / "new").exists()


@pytest.mark.parametrize(("key", "kind"), combinations(KEYS, WORDS))
def test_a_word_of_a_sweep_file_is_refused(key, kind, planted, capsys):
    (planted / "sweep.toml").write_text(f'{key} = "{word(kind, planted)}"\n')

    code, told, harm = refused(("run", "--config", "sweep.toml", "--dry-run"), planted, capsys)

    assert harm == []
    assert code == 2, told


@pytest.mark.parametrize("kind", ["plan", "file", "file as an option", "inner module"])
def test_a_refusal_is_the_same_whether_a_file_is_there_or_not(kind, planted, capsys):
    there, gone = word(kind, planted), word(kind, planted).replace("/outside/", "/nowhere/")
    folder(planted / "base", model=there, strategy=there)
    folder(planted / "gone", model=gone, strategy=gone)

    for words in RUNNING.values():
        code, told, _ = refused(words, planted, capsys)
        again = tuple("gone" if word == "base" else word for word in words)
        assert (code, told) == _named(refused(again, planted, capsys)), words


def _named(answered: tuple[int, str, list[tuple[str, str]]]) -> tuple[int, str]:
    code, told, _ = answered
    return code, told.replace("/nowhere/", "/outside/").replace("--resume gone", "--resume base").replace(
        "explain gone", "explain base"
    )


def test_a_plan_of_the_folder_itself_needs_no_naming_unless_it_leads_elsewhere(planted):
    plan = planted / "base" / "plans" / "one.json"
    folder(planted / "base", strategy="plan:file=base/plans/one.json")
    plan.parent.mkdir()
    case = store.load(planted / "base").manifest.plan[0].case

    def unnamed() -> dict[str, list[str]]:
        return consent.unnamed_words([case], folder=planted / "base", named={})

    assert "strategy" in unnamed()
    plan.symlink_to(planted / "outside" / "secret.json")
    assert "strategy" in unnamed()
    plan.unlink()
    plan.write_text("{}")
    assert unnamed() == {}
    assert safe_files.is_regular(plan)


OBEYED = "a\x9b31mb\x85c\u2028d\u2029e\u202ef\u2066g\u200fh\U000e0041i\x7fj\x1b]0;t\x07k\ufeffl"
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of our own tables
PRINTING = (
    ("show", "base", "--json"),
    ("show", "base"),
    ("list", "--json", "--folder", "."),
    ("validate", "base", "--json"),
    ("compare", "base", "base2", "--format", "json"),
    ("compare", "base", "base2", "--format", "csv"),
    ("export", "base", "--to", "json"),
    ("export", "base", "--to", "csv"),
    ("export", "base", "--to", "latex"),
)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def obeyed(here: Path) -> Path:
    """Two runs that hold such characters wherever a text is free."""
    for name in ("base", "base2"):
        case = make.case(model=f"mlp{OBEYED}", blocks=OBEYED, precision=OBEYED)
        records = [make.record(case=case, detail=OBEYED), make.failed("all", "crashed", OBEYED)]
        folder = examples.run(here / name, records).folder
        environment = msgspec.structs.replace(examples.ENVIRONMENT, device_name=OBEYED)
        forge(folder, command=OBEYED, environment=environment)
    return here


def printed(words: tuple[str, ...], stream: type[io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> str:
    stdout = stream(io.BytesIO(), encoding="utf-8", newline="")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert answer(list(words)) in (0, 4)
    assert isinstance(stdout.buffer, io.BytesIO)
    return stdout.buffer.getvalue().decode()


@pytest.mark.slow
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_no_character_that_a_terminal_obeys_is_printed_there(words, obeyed, monkeypatch):
    told = COLOURS.sub("", printed(words, Terminal, monkeypatch))

    assert [character for character in told if not character.isprintable() and character not in "\n\t"] == []
    if "json" in " ".join(words):
        assert json.loads(told) == json.loads(printed(words, io.TextIOWrapper, monkeypatch))


STAGE_NAMES = (
    'x"]); open("sprung", "w"); ([("',
    "x\\",
    "x\u2028open('sprung')",
    "{open('sprung', 'w')}",
    "$plan ${plan}",
)


def stages(name: str) -> dict[str, Any]:
    """Two stages, one of which has this name, and these modules and this save option."""
    costs = dict.fromkeys(("forward_seconds", "backward_seconds"), 1.0)
    held = {"output_bytes": 1, "saved_bytes": 100, "forward_extra_bytes": 0, "backward_extra_bytes": 0}
    return {
        "input_bytes": 1,
        "stages": [
            {"name": f"{name}{index}", **costs, **held, "blocks": [{"name": f"{name}{index}", "parameters": [name]}]}
            for index in range(6)
        ],
    }


def emitted(name: str, here: Path, capsys: Any) -> str:
    (here / "stages.json").write_bytes(msgspec.json.encode(stages(name)))
    assert answer(["plan", "--stages", "stages.json", "--budget", "60%", "--emit", "python"]) == 0
    return str(capsys.readouterr().out)


def shape(code: str) -> str:
    """A program without its constants."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGE_NAMES)
def test_a_name_of_a_stage_is_a_text_of_the_code(name, here, capsys):
    plain = emitted("layer", here, capsys)

    code = emitted(name, here, capsys)

    assert shape(code) == shape(plain)
    assert not (here / "sprung").exists()
    assert SECRET not in code


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
