"""Run folders whose words lead to code, files and networks, and what they lead to, planted."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from profiler.core.case import Case, Trial, encode
from profiler.core.record import Record
from profiler.runs import store
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
FIELDS = ("model", "strategy", "optimizer", "parallel", "blocks", "data", "precision", "verify", "device")


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
    (path / "evil.py").write_text(EVIL.format(mark=str(path.parent / "sprung")))
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
