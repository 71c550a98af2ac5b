"""What exists is read without importing it; a word that is not known is answered with the nearest."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.errors import UserError, nearest, similar
from profiler.training import models, optimizers, strategies

TABLES = [models.TABLE, strategies.TABLE, optimizers.TABLE]


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_says_in_one_sentence_what_it_is_about(table):
    for entry in catalogue.entries(table, hidden=True):
        assert entry.about.endswith("."), entry.name


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
        ("segments:4", strategies.TABLE, "segments:k=..., its keys are k, split"),
        ("segments:k", strategies.TABLE, "segments:k=..., its keys are k, split"),
        ("segments::", strategies.TABLE, "segments:k=..., its keys are k, split"),
        ("all:3", strategies.TABLE, "'all' takes no options"),
        ("mlp:", models.TABLE, "mlp:width=..., its keys are "),
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


def test_options_arrive_with_their_types():
    function, options = catalogue.load(Choice("segments:k=3,split=balanced"), strategies.TABLE)

    assert function.__module__ == "profiler.training.strategies.chain"
    assert options == {"k": 3, "split": "balanced"}


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18", "hf:vit"])
def test_a_default_that_is_written_out_is_the_same_choice(name):
    assert catalogue.resolve(Choice(f"{name}:size=own"), models.TABLE) == name


def test_a_factory_may_be_imported_from_beside_the_file_or_be_another_name(tmp_path):
    (tmp_path / "mygpt.py").write_text("def build(depth: int = 3, batch_size: int = 2):\n    pass\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from .mine import build as make\n")
    (tmp_path / "pack" / "mine.py").write_text("def build(width: int = 5):\n    pass\n")
    (tmp_path / "train.py").write_text(
        "from mygpt import build as make\nfrom pack import make as packed\nother = make\nloop = pool\npool = loop\n"
    )
    options = {
        name: [option.name for option in catalogue.read(f"{tmp_path}/train.py:{name}", models.TABLE).options]
        for name in ("make", "other", "packed")
    }

    assert options == {"make": ["depth"], "other": ["depth"], "packed": ["width"]}
    for name in ("loop", "absent"):
        with pytest.raises(UserError, match=f"has no function '{name}'|has no function 'pool'|has no function 'loop'"):
            catalogue.read(f"{tmp_path}/train.py:{name}", models.TABLE)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that leave a mark when they are imported: in packages, in folders without `__init__.py`, in a zip."""
    mark = f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n"
    make = f"{mark}def make(*, depth=3):\n    pass\n"
    for name in ("outer/__init__.py", "outer/inner/__init__.py", "outer/inner/leaf.py", "bare/below/leaf.py"):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(make)
    with zipfile.ZipFile(tmp_path / "site.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", make)
        archive.writestr("zipped/leaf.py", make)
    for place in ("site", "site.zip"):
        monkeypatch.syspath_prepend(tmp_path / place)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["outer", "outer.inner", "outer.inner.leaf", "bare.below.leaf", "zipped", "zipped.leaf"]
)
def test_a_module_is_found_without_importing_the_packages_around_it(name: str, packages: Path):
    entry = catalogue.read(f"{name}:make", models.TABLE)

    assert [(option.name, option.default) for option in entry.options] == [("depth", "3")]
    assert not (packages / "sprung").exists()
    assert name.partition(".")[0] not in sys.modules


@pytest.mark.parametrize(
    "name", ["outer.gone", "outer.inner.leaf.gone", "bare.gone", "bare", "zipped.gone", "gone.leaf"]
)
def test_a_module_that_is_not_there_is_said_to_be(name: str, packages: Path):
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
        ("RTX3060", GPUS, ["rtx-3060"]),
        ("a100", GPUS, ["a100-40", "a100-80"]),
        ("h10", GPUS, ["h100"]),
        ("--strategy", FLAGS, ["--strategies"]),
        ("--seg", FLAGS, ["--segments"]),
        ("--max", FLAGS, ["--max-samples", "--max-seconds"]),
        ("--jsno", FLAGS, ["--json"]),  # two letters in each other's place are one slip
    ],
)
def test_what_begins_so_or_is_a_few_slips_away_is_near(word: str, words: tuple[str, ...], meant: list[str]):
    assert similar(word, words) == meant


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("--frobnicate", FLAGS),
        ("pie", ("time", "memory", "frontier", "phases")),
        ("q", GPUS),
        ("", GPUS),
        ("anything", ()),
    ],
)
def test_where_nothing_is_near_nothing_is_named(word: str, words: tuple[str, ...]):
    assert nearest(word, words) is None


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plot", "--kind", "memry"], "did you mean '--kind memory'?"),
        (["run", "--precision", "bf61"], "did you mean '--precision bf16'?"),
        (["run", "--verify", "strickt"], "did you mean '--verify strict'?"),
        (["run", "--model", "mlp:wdth=3"], "did you mean 'mlp:width=3'?"),
        (["run", "--model", "torchvison:resnet18"], "did you mean 'torchvision:resnet18'?"),
        (["plan", "mlp", "--budget", "60%", "--device", "fake:2080ti"], "did you mean '--device fake:rtx-2080-ti'?"),
        (["run", "--frobnicate"], "gcprof run --help"),
        (["plot", "--kind", "pie"], "choose from frontier, memory, "),
    ],
)
def test_a_hint_is_what_one_would_type(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]):
    assert answer(words) == 2

    assert capsys.readouterr().err.splitlines()[1].startswith(f"hint: {hint}")
