"""The catalogue is read without importing it, and the gate for words of files holds over all of it."""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.catalogue import Entry, Option
from profiler.core.errors import UserError
from profiler.training import models
from profiler.workflows import spec
from profiler.workflows.resume import unnamed_words
from profiler.workflows.spec import TABLES, Request
from tests import make

MEMBERS = {"torchvision": "resnet18", "timm": "resnet18.a1_in1k", "hf": "bert", "torch": "RAdam"}
PLAIN = {"Count": "3", "int": "-1", "float": "0.5", "bool": "true", "str": "matmul+attention"}
HOSTILE = (
    "evil/kernel", "evilpkg.sub:make", "evilpkg.sub", "../x", "/etc/passwd", "evil.py", "https://evil.org/x",
    "hf-hub:evil/x", "'evil/kernel'", "['evil/kernel']", "{'a': 1}", "kernels-community", "$HOME",
)  # fmt: skip
LOADING = ("pretrained", "trust_remote_code", "_attn_implementation", "weights", "hub_id", "use_kernels", "download")


def entries() -> Iterator[tuple[str, Entry]]:
    """Every entry of every table that a file may name, families by a member."""
    for field, table in TABLES.items():
        for name in table:
            if name != catalogue.USERS:
                entry = catalogue.listed(name, table) or catalogue.listed(f"{name}:{MEMBERS[name]}", table)
                assert entry, name
                yield field, entry


def is_plain(field: str, entry: Entry, **given: str) -> bool:
    must = {option.name: _plain_value(option) for option in entry.options if option.default is None}
    return spec.is_plain(Choice.of(entry.name, {**must, **given}), TABLES[field])


def _plain_value(option: Option) -> str:
    return option.words[0] if option.words else PLAIN[option.kind]


@pytest.mark.parametrize(("field", "entry"), [pytest.param(*pair, id=pair[1].name) for pair in entries()])
def test_every_option_takes_its_own_kind_of_value_and_one_that_is_no_ours_a_number_and_nothing_hostile(field, entry):
    assert is_plain(field, entry) == (entry.name != "plan")  # whose file is not named
    for option, word in product(entry.options, HOSTILE):
        assert is_plain(field, entry, **{option.name: _plain_value(option)}) == (entry.name != "plan")
        choice = Choice.of(entry.name, {option.name: word})
        if spec.is_plain(choice, TABLES[field]):
            assert option.kind != "str"  # what is a number of ours is refused where it is read
            with pytest.raises(UserError, match=f"{option.name}="):
                catalogue.resolve(choice, TABLES[field])
    for value in ("64", "1e-3", "true", "None"):
        assert is_plain(field, entry, hidden_size=value) == (entry.open and entry.name != "plan")
    assert not any(is_plain(field, entry, hidden_size=word) for word in HOSTILE)
    assert not any(is_plain(field, entry, **{key: "true"}) for key in LOADING)


@pytest.mark.parametrize("field", TABLES)
@pytest.mark.parametrize("word", ["evilpkg.sub:make", "/etc/passwd", "x.py:make", "*:x.py:make", "mlp:make"])
def test_a_hostile_word_in_a_field_is_told_until_it_is_typed(field, word):
    case = msgspec.structs.replace(make.case(), **{field: Choice(word)})

    assert unnamed_words([case, make.case()], folder=None, named={}) == {field: [word]}
    assert unnamed_words([case], folder=None, named={field: {word}}) == {}


def test_every_field_that_is_a_choice_is_one_of_a_table():
    choices = {name for name, kind in get_type_hints(Case).items() if kind is Choice or Choice in get_args(kind)}

    assert choices == set(TABLES)


@pytest.mark.parametrize("key", [*spec.FLAGS, "data"])
def test_a_key_of_a_sweep_file_that_names_something_must_be_typed(key):
    asked = Request(**{key: "evilpkg.sub:make"})

    with pytest.raises(UserError, match=f"sweep.toml: {key} = ", check=lambda error: f"--{key} 'evilpkg" in error.hint):
        spec.refuse_file(asked, Request(), path=Path("sweep.toml"))

    spec.refuse_file(asked, asked, path=Path("sweep.toml"))


# --- what exists is read without importing it; a word that is not known is answered with the nearest


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A table with a function whose file cannot be imported."""
    (tmp_path / "mine.py").write_text(
        "raise ImportError('read, not imported')\n"
        "def build(batch_size: int = 3, *,\n"
        "          n: Count = 2, p: float = 0.5, on: bool = False, w: Literal['a', 'b'] = 'b'):\n"
        "    '''Mine.\n\n    More.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return {"mine": "mine:build"}


def test_options_are_read_from_the_source(mine):
    entry = catalogue.read("mine", mine)

    assert "mine" not in sys.modules
    assert (entry.about, entry.parameters) == ("Mine.", {"batch_size": "3"})
    assert [(option.name, option.kind, option.default) for option in entry.options] == [
        ("n", "Count", "2"),
        ("p", "float", "0.5"),
        ("on", "bool", "false"),
        ("w", "a or b", "b"),
    ]
    assert catalogue.resolve(Choice("mine:w=a,n=2,on=true"), mine) == "mine:on=true,w=a"


@pytest.mark.parametrize("bad", ["mine:n=0", "mine:n=1.5", "mine:on=maybe", "mine:p=half", "mine:w=c", "mine:q=1"])
def test_a_value_of_the_wrong_kind_is_refused(mine, bad):
    with pytest.raises(UserError, match=bad):
        catalogue.resolve(Choice(bad), mine)


def test_a_module_of_the_users_that_is_called_as_a_model_is_found_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "mlp.py").write_text("def width(batch_size=2):\n    return None, None\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert catalogue.resolve(Choice("mlp:width"), models.TABLE) == "mlp:width"


@pytest.mark.parametrize("name", ["outer.gone", "outer.leaf.gone", "outer", "gone.leaf"])
def test_a_module_that_is_not_there_is_said_to_be_and_none_is_imported(name, tmp_path, monkeypatch):
    (tmp_path / "outer").mkdir()  # in a folder without `__init__.py`
    (tmp_path / "outer" / "leaf.py").write_text("raise ImportError('read, not imported')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UserError, match=f"there is no module '{name}'"):
        catalogue.read(f"{name}:make", models.TABLE)
