"""What exists is read without importing it; a word that is not known is answered with the nearest."""

import builtins
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.errors import UserError, similar
from profiler.training import STRATEGIES, models


def test_options_are_read_from_the_source(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "raise ImportError('read, not imported')\n"
        "def build(batch_size: int = 3, *,\n"
        "          n: Count = 2, p: float = 0.5, on: bool = False, w: Literal['a', 'b'] = 'b'):\n"
        "    '''Mine.\n\n    More.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    entry = catalogue.read("mine", {"mine": "mine:build"})

    assert "mine" not in sys.modules
    assert entry.about == "Mine."
    assert entry.parameters == {"batch_size": "3"}
    assert [(option.name, option.kind, option.default) for option in entry.options] == [
        ("n", "Count", "2"),
        ("p", "float", "0.5"),
        ("on", "bool", "false"),
        ("w", "a or b", "b"),
    ]
    resolved = catalogue.resolve(Choice("mine:w=a,n=2,on=true"), {"mine": "mine:build"})
    assert resolved == "mine:on=true,w=a"


@pytest.mark.parametrize("bad", ["mine:n=0", "mine:n=1.5", "mine:on=maybe", "mine:p=half", "mine:w=c", "mine:q=1"])
def test_a_value_of_the_wrong_kind_is_refused(tmp_path, monkeypatch, bad):
    (tmp_path / "mine2.py").write_text(
        "def build(*, n: Count = 2, p: float = 0.5, on: bool = False, w: Literal['a', 'b'] = 'b'):\n    'Mine.'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UserError, match=bad):
        catalogue.resolve(Choice(bad), {"mine": "mine2:build"})


@pytest.mark.parametrize(
    ("text", "table", "hint"),
    [
        ("segments:4", STRATEGIES, "segments:k=..., its keys are k, split"),
        ("all:3", STRATEGIES, "'all' takes no options"),
        ("mlp:width", models.TABLE, "mlp:width=..., its keys are "),  # no module of the user's
        ("mlp:width:depth=3", models.TABLE, "mlp:width=..., its keys are "),
    ],
)
def test_options_that_are_written_in_another_way_are_told_how(text, table, hint):
    with pytest.raises(UserError, match="not written as key=value") as told:
        catalogue.resolve(Choice(text), table)

    assert told.value.hint.startswith(hint)


def test_a_module_of_the_users_that_is_called_as_a_model_is_found_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "mlp.py").write_text("def width(batch_size=2):\n    return None, None\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert catalogue.resolve(Choice("mlp:width"), models.TABLE) == "mlp:width"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that leave a mark when they are imported: in packages, and in folders without `__init__.py`."""
    mark = f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n"
    make = f"{mark}def make(*, depth=3):\n    pass\n"
    for name in ("outer/__init__.py", "outer/inner/__init__.py", "outer/inner/leaf.py", "bare/below/leaf.py"):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(make)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path


@pytest.mark.parametrize("name", ["outer.gone", "outer.inner.leaf.gone", "bare.gone", "bare", "gone.leaf"])
def test_a_module_that_is_not_there_is_said_to_be(name, packages):
    with pytest.raises(UserError, match=f"there is no module '{name}'"):
        catalogue.read(f"{name}:make", models.TABLE)

    assert not (packages / "sprung").exists()


GPUS = ("a100-40", "a100-80", "h100", "h200", "rtx-2080-ti", "rtx-3060", "t4")
FLAGS = ("--strategies", "--segments", "--device", "--max-samples", "--max-seconds", "--json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "words", "meant"),
    [
        ("2080ti", GPUS, ["rtx-2080-ti"]),
        ("a100", GPUS, ["a100-40", "a100-80"]),
        ("h10", GPUS, ["h100"]),
        ("--strategy", FLAGS, ["--strategies"]),
        ("--max", FLAGS, ["--max-samples", "--max-seconds"]),
        ("--jsno", FLAGS, ["--json"]),  # two letters in each other's place are one slip
    ],
)
def test_what_begins_so_or_is_a_few_slips_away_is_near(word, words, meant):
    assert similar(word, words) == meant


def test_a_file_of_many_functions_is_parsed_once(tmp_path, monkeypatch):
    file = tmp_path / "many.py"
    file.write_text("def one(): ...\ndef two(): ...\n")
    compiler = Mock(side_effect=compile)
    monkeypatch.setattr(builtins, "compile", compiler)

    names = [catalogue.read_function(f"{file}:{name}").name for name in ("one", "two")]

    assert names == ["one", "two"]
    assert compiler.call_count == 1
