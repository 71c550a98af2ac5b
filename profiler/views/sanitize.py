"""Make texts from files and child processes safe to print, and redact what could identify the machine or its user.

Measured numbers are never changed. "default" hides folders, addresses (user@host) and device UUIDs; "all" also hides
device names, model options, the command and the texts of failures; "none" hides nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.case import Case, Choice
from profiler.core.gpu_specs import HOLLOW, is_hollow, parse
from profiler.core.record import AppliedToModel, Built, Environment, Equality, Note, Readings, Record, VariantFacts
from profiler.core.safe_files import HIDDEN, hide
from profiler.runs.store import Run

ASCII = str.maketrans({"±": "+-", "…": "..."})  # symbols of ours; others that the encoding lacks are escaped
ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")  # colors, titles, links of a terminal


@lru_cache(maxsize=4096)  # tables repeat their words
def plain(text: str, *, encoding: str = "utf-8") -> str:
    """Return the text on one line, without control characters, limited to what the encoding can represent."""
    if text.isascii() and text.isprintable() and " ".join(text.split()) == text:
        return text  # the common case
    line = " ".join(ESCAPE.sub("", text).split())
    if not line.isprintable():
        line = "".join(character for character in line if unicodedata.category(character) not in ("Cc", "Cf", "Cs"))
    try:
        line.encode(encoding)
        return line
    except UnicodeEncodeError:
        return line.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)


def escaped(text: str) -> str:
    """Return a document with terminal control characters escaped as in JSON, so that a JSON document keeps its meaning.

    Line ends and tabs stay. C0, C1 and bidirectional controls, U+2028 and U+2029 are escaped.
    """

    def is_harmless(character: str) -> bool:
        return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"

    def escape(character: str) -> str:
        units = character.encode("utf-16-be", "surrogatepass").hex()  # one or two UTF-16 code units
        return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))

    return "".join(character if is_harmless(character) else escape(character) for character in text)


def short(value: object, length: int) -> str:
    """Return a value as one line that is safe to print, its middle elided if it is longer than `length` characters."""
    return shortened(plain(str(value)), length)


def shortened(text: str, length: int) -> str:
    """Return the text, its middle elided if it is longer than `length`: similar names differ at their ends."""
    before = (length - 1) // 2
    return text if len(text) <= length else f"{text[:before]}…{text[before + 1 - length :]}"


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
OURS = ("name", "torch", "category", "steps_are", "split", "outcome", "verdict")  # fields of a script
LEVELS = ("default", "all", "none")


def redacted(runs: Iterable[Run], *, level: str) -> list[Run]:
    """Return the runs redacted at one of LEVELS. Cases that would look alike after redaction are numbered."""
    if level == "none":
        return list(runs)
    is_all, shown = level == "all", []
    for number, run in enumerate(runs, start=1):
        redact = _Redaction(run.records, is_all=is_all)
        words = hidden(run.manifest.command).split(" ")  # a word that has a slash counts as a path
        command = " ".join(re.sub(r"^((?:--?[\w-]+=)?).*[\\/]", r"\1[path]/", word) for word in words)
        environment, command = redact(run.manifest.environment), HIDDEN if is_all else command
        manifest = msgspec.structs.replace(run.manifest, command=command, plan=(), environment=environment)
        folder = Path(f"run {number}") if is_all else run.folder
        shown.append(msgspec.structs.replace(run, folder=folder, manifest=manifest, records=redact(run.records)))
    return shown


class _Redaction:
    """Redacts records of one run: texts, and fields by their rules; equal names get equal replacements."""

    def __init__(self, records: Iterable[Record], *, is_all: bool) -> None:
        cases = [record.case for record in records]
        self._is_all = is_all
        self._models = _apart((case.model for case in cases), self._model)
        strategies = _apart((case.strategy for case in cases), self._strategy)
        gpus = (_gpu(case.device) for case in cases)
        self._gpus = _apart((gpu for gpu in gpus if gpu not in (None, "cpu")), lambda gpu: "cuda")
        self._devices = _apart((case.device for case in cases), self._device)
        self._rules: dict[type, dict[str, Callable[[Any], Any]]] = {  # all other fields of these stay
            Record: {
                **dict.fromkeys(("case", "built", "readings", "equality", "environment", "script", "variant"), self),
                **dict.fromkeys(("detail", "phases"), self),  # they may quote anything
                "notes": lambda notes: tuple(map(self._note, notes)),
            },
            Case: {
                "model": lambda model: Choice(self._models[model]),
                "strategy": lambda strategy: Choice(strategies[strategy]),
                "device": self._devices.__getitem__,
                "command": self,
                "values": lambda values: tuple((name, self(text)) for name, text in values),
            },
            Environment: {"device_uuid": lambda uuid: HIDDEN},
            Built: {"data": lambda data: data if data == "synthetic" else self(data)},
            Equality: {},
            Readings: {},
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

    def __call__(self, part: Any) -> Any:
        """Return a text of the user's, or all parts of a record or of a tuple, redacted; numbers stay."""
        if isinstance(part, str):
            return HIDDEN if self._is_all and part else hidden(part)
        if isinstance(part, tuple):
            return tuple(map(self, part))
        if not isinstance(part, msgspec.Struct):
            return part
        rules = self._rules.get(type(part))
        if rules is None:  # of a script
            rules = dict.fromkeys((name for name in part.__struct_fields__ if name not in OURS), self)
            rules |= {"words": self._words} if isinstance(part, VariantFacts) else {}
            rules |= {"strategy": self._strategy} if isinstance(part, AppliedToModel) else {}
        changed = {name: rule(value) for name, rule in rules.items() if (value := getattr(part, name))}
        return msgspec.structs.replace(part, **changed)

    def _words(self, words: dict[str, str]) -> dict[str, str]:
        """Redact what a variant is: its GPUs, with their number, and the values of the user's command."""
        gpu, colon, count = words["device"].partition(":")
        device = f"{self._gpus[gpu]}{colon}{count}" if self._is_all and gpu in self._gpus else words["device"]
        own = {name: self._strategy(text) if name == "strategy" else self(text) for name, text in words.items()}
        return {**own, "device": device}

    def _note(self, note: Note) -> Note:
        """Redacts what a note quotes from the case; if that is names or code, only the words before the quote stay."""
        text = note.text
        if self._is_all:
            text = re.split(r": | \(", text)[0] if note.code in QUOTING else text
            for word, instead in {**self._models, **self._devices}.items():
                text = text.replace(word, instead) if word != instead else text
        return msgspec.structs.replace(note, text=hidden(text, wholly=self._is_all))

    def _strategy(self, text: str) -> str:
        return Choice(text).name if self._is_all and "file=" in text else hidden(text)

    def _model(self, text: str) -> str:
        if not self._is_all:
            return hidden(text)
        name = Choice(text).name
        return "a model of one's own" if re.search(r"\.py\b|[\\/]", name) else name

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
        new = change(text)
        numbered = chain([new], (f"{new} #{number}" for number in count(2)))
        changed[text] = next(name for name in numbered if name not in changed.values())
    return changed


def hidden(text: str, *, wholly: bool = False) -> str:
    """Return a text without secrets, folders, addresses and device numbers; with `wholly`, without file names too."""
    return PLACE.sub(HIDDEN if wholly else _instead, hide(text))


def _instead(match: re.Match[str]) -> str:
    """Return what stands for a place: of a path the name of its file, not of a folder, which could tell the user."""
    if match["address"] or match["number"]:
        return HIDDEN
    name = re.split(r"[\\/]", match["absolute"] or match[0].strip("'\""))[-1]
    is_file = re.search(r"\.[A-Za-z]\w*", name)
    name = f"{name if is_file else ''}{match['after'] or ''}".strip()  # `after`: of a name with a space in it
    return f"[path]/{name}" if name else "[path]"
