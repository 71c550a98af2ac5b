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
from profiler.core.secret_filter import HIDDEN, hide
from profiler.runs.store import Manifest, Run

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
LEVELS = ("default", "all", "none")


def redacted(runs: Iterable[Run], *, level: str) -> list[Run]:
    """Return the runs redacted at one of LEVELS. Cases that would look alike after redaction are numbered."""
    return [run if level == "none" else _redacted(run, number, level) for number, run in enumerate(runs, start=1)]


def _redacted(run: Run, number: int, level: str) -> Run:
    change = _Redaction(run.records, is_all=level == "all")
    command = HIDDEN if level == "all" else _command(run.manifest.command)
    manifest = msgspec.structs.replace(
        run.manifest, command=command, plan=(), environment=change.environment(run.manifest.environment)
    )
    assert isinstance(manifest, Manifest)
    return msgspec.structs.replace(
        run,
        folder=Path(f"run {number}") if level == "all" else run.folder,
        manifest=manifest,
        records=tuple(change.record(record) for record in run.records),
    )


def _command(text: str) -> str:
    """Hides the folders in a command; every word that contains a slash counts as a path."""
    return " ".join(re.sub(r"^((?:--?[\w-]+=)?).*[\\/]", r"\1[path]/", word) for word in hidden(text).split(" "))


class _Redaction:
    """Redacts the records of one run; equal names get equal replacements."""

    def __init__(self, records: Iterable[Record], *, is_all: bool) -> None:
        cases = [record.case for record in records]
        self._is_all = is_all
        self._models = _apart((case.model for case in cases), self._model)
        self._strategies = _apart((case.strategy for case in cases), self._strategy)
        gpus = (_gpu(case.device) for case in cases)
        self._gpus = _apart((gpu for gpu in gpus if gpu not in (None, "cpu")), lambda gpu: "cuda")
        self._devices = _apart((case.device for case in cases), self._device)

    def record(self, record: Record) -> Record:
        """Return the record with every name, text and device redacted; its numbers stay."""
        return msgspec.structs.replace(
            record,
            case=self._case(record.case),
            detail=record.detail and (HIDDEN if self._is_all else hidden(record.detail)),  # it may quote anything
            built=self._built(record.built),
            readings=self._readings(record.readings),
            equality=self._equality(record.equality),
            environment=self.environment(record.environment) if record.environment else None,
            notes=tuple(msgspec.structs.replace(note, text=self._note(note)) for note in record.notes),
            **self._script(record),
        )

    def _script(self, record: Record) -> dict[str, Any]:
        """Return what is redacted of a process of a script: its lines name files, and so do its command's words."""
        if not (record.script and record.variant):
            return {}
        words = {
            name: self._gpu_word(text) if name == "device" else text if name == "strategy" else self._text(text)
            for name, text in record.variant.words.items()
        }
        return {
            "phases": tuple(_texts(phase, self._text) for phase in record.phases or ()),
            "script": _texts(record.script, self._text),
            "variant": msgspec.structs.replace(_texts(record.variant, self._text), words=words),
        }

    def _text(self, text: str) -> str:
        """Redact a word or a line of the user's: wholly, if all that could identify the model is hidden."""
        return HIDDEN if self._is_all and text else hidden(text)

    def _gpu_word(self, text: str) -> str:
        gpu, colon, count = text.partition(":")
        return f"{self._gpus[gpu]}{colon}{count}" if self._is_all and gpu in self._gpus else text

    def environment(self, environment: Environment) -> Environment:
        name = environment.device_name
        hollow = HOLLOW if is_hollow(name) else ""  # so that its records still count as rehearsed
        shown = f"{hollow}{HIDDEN}" if self._is_all and name else name
        return msgspec.structs.replace(
            environment, device_name=shown, device_uuid=HIDDEN if environment.device_uuid else None
        )

    def _case(self, case: Case) -> Case:
        return msgspec.structs.replace(
            case,
            model=Choice(self._models[case.model]),
            strategy=Choice(self._strategies[case.strategy]),
            device=self._devices[case.device],
            blocks=HIDDEN if self._is_all and case.blocks else case.blocks,
            command=case.command and tuple(map(self._text, case.command)),
            values=case.values and tuple((name, self._text(text)) for name, text in case.values),
        )

    def _built(self, built: Built | None) -> Built | None:
        if built is None:
            return None
        is_named = self._is_all and built.data != "synthetic"
        return msgspec.structs.replace(built, data=HIDDEN if is_named else hidden(built.data))

    def _equality(self, equality: Equality | None) -> Equality | None:
        """Hides names of parameters, which could identify the model."""
        if equality is None or not self._is_all:
            return equality
        worst = HIDDEN if equality.worst_parameter else None
        buffers, missing = (HIDDEN,) * len(equality.differing_buffers), (HIDDEN,) * len(equality.missing)
        return msgspec.structs.replace(equality, worst_parameter=worst, differing_buffers=buffers, missing=missing)

    def _readings(self, readings: Readings) -> Readings:
        """Hides names of modules, which could identify the model."""
        if readings.timeline is None or not self._is_all:
            return readings
        unnamed = msgspec.structs.replace(readings.timeline, module=None, modules={})
        return msgspec.structs.replace(readings, timeline=unnamed)

    def _note(self, note: Note) -> str:
        """Redacts a note; if it quotes names or code of the model, only the words before the quote stay."""
        is_quoting = self._is_all and note.code in QUOTING
        return self._known(re.split(r": | \(", note.text)[0] if is_quoting else note.text)

    def _known(self, text: str) -> str:
        """Redacts what a note quotes from the case; its other words are gcprof's own."""
        if not self._is_all:
            return hidden(text)
        for word, instead in {**self._models, **self._devices}.items():
            text = text.replace(word, instead) if word != instead else text
        return hidden(text, wholly=True)

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


def _texts(part: Any, change: Callable[[str], str]) -> Any:
    """Return a phase, or what is known of a process, with its lines of the script changed."""
    kept = ("name", "torch", "category", "steps_are", "strategy", "split", "outcome", "verdict")  # gcprof's own words
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    return msgspec.structs.replace(
        part, **{name: value if name in kept else _changed(value, change) for name, value in fields.items()}
    )


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(item, change) for item in value)
    return _texts(value, change) if isinstance(value, msgspec.Struct) else value


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
