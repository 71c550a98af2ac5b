"""`gcprof run` from its words to its files: once as a whole program, then on the fork server that all tests share."""

import json
import socket
from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import encode
from profiler.core.record import Record
from profiler.runs import store
from profiler.workflows import spec
from profiler.workflows.spec import Request
from tests import examples, make
from tests.mnist_files import write_mnist
from tests.program import gcprof, row_names

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
SECRET = "hunter2-3fa9c1"


def records(folder: Path) -> tuple[Record, ...]:
    return store.load(folder).records


def places(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Which of these words stand in which files."""
    texts = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [(word, name) for name, text in texts.items() for word in words if word.encode() in text]


def test_a_run_of_the_real_program_has_a_row_a_case_and_its_folder_holds_no_more_than_it_should(tmp_path):
    work, folder = tmp_path / "work", tmp_path / "work" / "mine" / "run"
    folder.parent.mkdir(parents=True)
    words = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "2", "--samples", "2")

    done = gcprof("run", *words, "-o", str(folder), cwd=work, HOME=str(tmp_path), API_TOKEN=SECRET)

    assert done.returncode == 0
    assert row_names(done.stdout) == ["none", "segments:k=1", "segments:k=2", "segments:k=8"]
    told = [line.partition(": ")[0] for line in done.stderr.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in told] == ["[1/8]", "[2/8]", "[3/8]", "[4/7]", "[5/7]", "[6/7]", "[7/7]"]
    assert told[3:5] == ["[4/7] mlp segments:k=8 round 1", "[5/7] mlp segments:k=2 round 2"]  # k=8 has no second round
    assert not {"\x1b", "\r"} & set(done.stderr)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files - {f"logs/{record.case.id}-{record.round}.log" for record in records(folder)} == {
        "manifest.json", "trials.jsonl", "derived/table.csv", "derived/table.md", "derived/frontier.png",
    }  # fmt: skip
    assert places(folder, SECRET, str(tmp_path)) == []
    (folder / "derived" / "frontier.png").unlink()  # pixels may spell a short name by chance
    assert places(folder, socket.gethostname()) == []


@pytest.mark.slow
def test_mnist_from_files_is_recorded_as_such_and_not_where_it_was(here, shared, capsys):
    write_mnist(here / "my-data", 6)
    model = ["--model", "mnist-cnn:channels=2,layers=5", "--batch-size", "4", "--strategies", "none"]

    assert answer(["run", *model, *QUICK, "--data", str(here / "my-data"), "-o", "run"]) == 0

    (record,) = records(here / "run")
    assert record.built is not None
    assert (record.case.data, record.built.data) == ("files", "mnist")
    assert "mnist" in capsys.readouterr().out
    assert places(here / "run", str(here)) == []


@pytest.mark.slow
def test_json_is_one_document_with_the_records_as_stored(here, shared, capsys):
    assert answer(["run", "--model", "mlp", "--segments", "2,8", *QUICK, "--json", "-o", "run"]) == 0

    document = json.loads(capsys.readouterr().out)
    stored = [json.loads(encode(record)) | {"evidence": "measured"} for record in records(here / "run")]
    assert document == {"schema": 1, "run": "run", "status": "complete", "exit_code": 0, "records": stored}


@pytest.mark.parametrize(("words", "code"), [("--model mpl", 2), ("--frobnicate", 2), ("--resume nowhere", 4)])
def test_json_is_one_document_where_nothing_could_be_run(words, code, here, no_server, capsys):
    assert answer(["run", *words.split(), "--json"]) == code

    out, err = capsys.readouterr()
    document = json.loads(out)
    said = [f"gcprof: {document.pop('message')}", f"hint: {document.pop('hint')}"]
    assert document == {"schema": 1, "run": None, "status": "failed", "exit_code": code, "records": []}
    assert err.splitlines() == said


OWN = {"model": "mlp", "strategies": "all", "segments": "1,2", "device": "cuda:0", "rounds": 2, "max_samples": 50}


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ({"strategies": "sqrt"}, {"strategies": "sqrt", "segments": None}),
        ({"gpus": "a100"}, {"gpus": "a100", "device": None}),
        ({"device": "fake:t4"}, {"device": "fake:t4", "rounds": None, "max_samples": None}),
    ],
    ids=str,
)
def test_one_word_of_a_resumed_run_replaces_what_it_names(word, replaced):
    assert spec.changed(Request(**OWN), Request(**word)) == Request(**{**OWN, **replaced})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, "--seed cannot be changed"),
        ({"model": "evilpkg.sub:make"}, "not gcprof's own"),
        ({"no_word": 1}, "no_word"),
    ],
)
def test_a_run_without_words_or_with_hostile_ones_is_not_changed(here, words, message, capsys):
    path = examples.run(here / "run", [make.record()]).folder / "manifest.json"
    document = msgspec.json.decode(path.read_bytes())
    document.pop("words", None)
    path.write_bytes(msgspec.json.encode(document | ({"words": words} if words else {})))

    assert answer(["run", "--resume", "run", "--new-run", "--seed", "3"]) in (2, 4)

    assert message in capsys.readouterr().err
