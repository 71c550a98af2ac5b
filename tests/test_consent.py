"""The gate for words of files, over the whole catalogue and every field of a case."""

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

    with pytest.raises(UserError, match=f"sweep.toml: {key} = ") as caught:
        spec.refuse_file(asked, Request(), path=Path("sweep.toml"))

    spec.refuse_file(asked, asked, path=Path("sweep.toml"))
    assert caught.value.hint == f"if it is meant, type it: --{key} 'evilpkg.sub:make'"
