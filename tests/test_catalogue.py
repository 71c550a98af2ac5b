"""What exists is read without importing it; a word that is not known is answered with the nearest."""

import sys

import pytest

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.training import models


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
