"""Redact what could identify the machine or its user from runs and texts. Measured numbers are never changed.

"default" hides folders, addresses (user@host) and device UUIDs; "all" also hides device names, model options, the
command and the texts of failures; "none" hides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.case import Case, Choice
from profiler.core.devices import parse
from profiler.core.gpu_specs import HOLLOW, is_hollow
from profiler.core.record import Built, Environment, Equality, Note, Readings, Record
from profiler.core.script import VariantFacts
from profiler.core.secret_filter import HIDDEN, hide
from profiler.runs.store import Run

START = r"(?:[a-z][a-z0-9+.-]{1,20}://|~[\w.-]*/|/(?=[\w.~/-])|[A-Za-z]:[\\/]|\\\\)"  # of an absolute path or URL
FILE = r"[\w.-]{0,255}\.[A-Za-z]\w*"  # no file has a longer name
PLACE = re.compile(
    rf"(?P<quoted>'{START}[^']*'|\"{START}[^\"]*\""
    rf"|(?<!\w)'(?:[\w.~ -]{{1,255}}[\\/])+[\w. -]{{0,255}}\.[A-Za-z]\w*'"
    rf"|\"(?:[\w.~ -]{{1,255}}[\\/])+[\w. -]{{0,255}}\.[A-Za-z]\w*\")"
    rf"|(?P<absolute>(?<![\w.\])]){START}(?:{re.escape(HIDDEN)}|[^\s'\"<>|,;()\[\]])+)(?P<after> {FILE})?"
    rf"|(?P<relative>(?:[\w.~-]{{1,255}}[\\/])+{FILE})"
    r"|(?P<address>[\w.+-]{1,64}@[\w.-]+)"  # the limit avoids quadratic backtracking in long words
    r"|(?P<number>\b(?:(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}))"
)

# notes that quote names or code of the user's model
QUOTING = (
    "GCP004", "GCP045", "GCP046", "GCP048", "GCP049", "GCP050", "GCP051", "GCP054", "GCP055", "GCP057", "GCP058",
    "GCP064",
)  # fmt: skip
OURS = ("name", "torch", "category", "steps_are", "strategy", "split", "outcome", "verdict")  # fields of a script
LEVELS = ("default", "all", "none")


def redacted(runs: Iterable[Run], *, level: str) -> list[Run]:
    """Return the runs redacted at one of LEVELS. Cases that would look alike after redaction are numbered."""
    return [run if level == "none" else _redacted(run, number, level) for number, run in enumerate(runs, start=1)]


def _redacted(run: Run, number: int, level: str) -> Run:
    change = _Redaction(run.records, is_all=level == "all")
    command = HIDDEN if level == "all" else _command(run.manifest.command)
    manifest = msgspec.structs.replace(
        run.manifest, command=command, plan=(), environment=change.part(run.manifest.environment)
    )
    return msgspec.structs.replace(
        run,
        folder=Path(f"run {number}") if level == "all" else run.folder,
        manifest=manifest,
        records=tuple(map(change.part, run.records)),
    )


def _command(text: str) -> str:
    """Hides the folders in a command; every word that contains a slash counts as a path."""
    return " ".join(re.sub(r"^((?:--?[\w-]+=)?).*[\\/]", r"\1[path]/", word) for word in hidden(text).split(" "))


class _Redaction:
    """Redacts the parts of the records of one run, by a rule for each field; equal names get equal replacements."""

    def __init__(self, records: Iterable[Record], *, is_all: bool) -> None:
        cases = [record.case for record in records]
        self._is_all = is_all
        self._models = _apart((case.model for case in cases), self._model)
        strategies = _apart((case.strategy for case in cases), self._strategy)
        gpus = (_gpu(case.device) for case in cases)
        self._gpus = _apart((gpu for gpu in gpus if gpu not in (None, "cpu")), lambda gpu: "cuda")
        self._devices = _apart((case.device for case in cases), self._device)
        self._rules: dict[type, dict[str, Callable[[Any], Any]]] = {
            Record: {
                **dict.fromkeys(("case", "built", "readings", "equality", "environment"), self.part),
                "detail": self._text,  # it may quote anything
                "notes": lambda notes: tuple(map(self._note, notes)),
                "phases": self._texts,
                "script": self._texts,
                "variant": self._variant,
            },
            Case: {
                "model": lambda model: Choice(self._models[model]),
                "strategy": lambda strategy: Choice(strategies[strategy]),
                "device": self._devices.__getitem__,
                "command": lambda words: tuple(map(self._text, words)),
                "values": lambda values: tuple((name, self._text(text)) for name, text in values),
            },
            Environment: {"device_uuid": lambda uuid: HIDDEN},
            Built: {"data": lambda data: data if data == "synthetic" else self._text(data)},
        }
        if is_all:  # names of devices, blocks, parameters and modules too; what is hollow still counts as rehearsed
            self._rules[Case]["blocks"] = lambda blocks: HIDDEN
            self._rules[Environment]["device_name"] = lambda name: f"{HOLLOW if is_hollow(name) else ''}{HIDDEN}"
            self._rules[Equality] = {
                "worst_parameter": lambda name: HIDDEN,
                **dict.fromkeys(("differing_buffers", "missing"), lambda names: (HIDDEN,) * len(names)),
            }
            self._rules[Readings] = {
                "timeline": lambda timeline: msgspec.structs.replace(timeline, module=None, modules={})
            }

    def part(self, part: Any) -> Any:
        """Return a record, or a part of one, with every name, text and device redacted; its numbers stay."""
        rules = self._rules.get(type(part), {})
        changed = {name: rule(value) for name, rule in rules.items() if (value := getattr(part, name))}
        return msgspec.structs.replace(part, **changed)

    def _text(self, text: str) -> str:
        """Redact a word or a line of the user's: wholly, if all that could identify the model is hidden."""
        return HIDDEN if self._is_all and text else hidden(text)

    def _texts(self, value: Any) -> Any:
        """Return what is known of a script, its lines and its command's words redacted, wherever they stand."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, tuple):
            return tuple(map(self._texts, value))
        if not isinstance(value, msgspec.Struct):
            return value
        fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in OURS}
        return msgspec.structs.replace(value, **{name: self._texts(field) for name, field in fields.items()})

    def _variant(self, variant: VariantFacts) -> Any:
        words = {
            name: self._gpu_word(text) if name == "device" else text if name == "strategy" else self._text(text)
            for name, text in variant.words.items()
        }
        return msgspec.structs.replace(self._texts(variant), words=words)

    def _gpu_word(self, text: str) -> str:
        gpu, colon, count = text.partition(":")
        return f"{self._gpus[gpu]}{colon}{count}" if self._is_all and gpu in self._gpus else text

    def _note(self, note: Note) -> Note:
        """Redacts what a note quotes from the case; if that is names or code, only the words before the quote stay."""
        text = note.text
        if self._is_all:
            text = re.split(r": | \(", text)[0] if note.code in QUOTING else text
            for word, instead in {**self._models, **self._devices}.items():
                text = text.replace(word, instead) if word != instead else text
        return msgspec.structs.replace(note, text=hidden(text, wholly=self._is_all))

    def _model(self, text: str) -> str:
        if not self._is_all:
            return hidden(text)
        name = Choice(text).name
        return "a model of one's own" if re.search(r"\.py\b|[\\/]", name) else name

    def _strategy(self, text: str) -> str:
        return Choice(text).name if self._is_all and "file=" in text else hidden(text)

    def _device(self, text: str) -> str:
        """Hides the GPU that is predicted for or rehearsed; equal GPUs get equal names, so that twins stay twins."""
        gpu = _gpu(text)
        return text.replace(gpu, self._gpus[gpu], 1) if self._is_all and gpu in self._gpus else text


def _gpu(device: str) -> str | None:
    """Return the name of the GPU that a case is predicted for or rehearsed on; None if it is measured."""
    return parse(device).name if parse(device).prefix else None


def _apart(texts: Iterable[str], change: Callable[[str], str]) -> dict[str, str]:
    """Maps every text to its redacted form; equal forms are numbered in the order of the texts."""
    changed: dict[str, str] = {}
    for text in dict.fromkeys(map(str, texts)):
        new, number = change(text), 1
        while (f"{new} #{number}" if number > 1 else new) in changed.values():
            number += 1
        changed[text] = f"{new} #{number}" if number > 1 else new
    return changed


def hidden(text: str, *, wholly: bool = False) -> str:
    """Return a text without secrets, folders, addresses and device numbers; with `wholly`, without file names too."""
    return PLACE.sub(HIDDEN if wholly else _instead, hide(text))


def _instead(match: re.Match[str]) -> str:
    if match["address"] or match["number"]:
        return HIDDEN
    name, after = _name(match["absolute"] or match[0].strip("'\"")), match["after"] or ""
    if after and not name:  # the rest of a name with a space in it
        return f"[path]/{after.strip()}"
    return f"[path]/{name}{after}" if name else "[path]"


def _name(path: str) -> str:
    """Return the file name of a path; nothing for a folder, whose name could give the user away."""
    name = re.split(r"[\\/]", path)[-1]
    return name if re.search(r"\.[A-Za-z]\w*", name) else ""
