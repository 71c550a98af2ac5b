"""`gcprof run` from its words to its files: once as a whole program, then on the fork server that all tests share."""

import json
import re
import socket
from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.core import catalogue
from profiler.core.case import Trial, encode
from profiler.core.record import Record
from profiler.request import spec
from profiler.request.spec import Request
from profiler.runs import store
from profiler.training import models
from tests import examples, make
from tests.mnist_files import write_mnist
from tests.program import Done, gcprof

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
SECRET = "hunter2-3fa9c1"


class Whole:
    """The one run of the real program that most of these tests look at."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "work" / "mine" / "run"
        self.folder.parent.mkdir(parents=True)
        words = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "2", "--samples", "2")
        self.done: Done = gcprof(
            "run", *words, "-o", str(self.folder), cwd=home / "work", HOME=str(home), API_TOKEN=SECRET
        )

    def stderr(self) -> list[str]:
        return self.done.stderr.splitlines()

    def row(self, strategy: str) -> list[str]:
        """The cells of this strategy's one row."""
        (line,) = (line for line in self.done.stdout.splitlines() if re.match(rf"{strategy} +\S", line))
        return re.split(r"  +", line.strip())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("home-of-somebody"))


def records(folder: Path) -> tuple[Record, ...]:
    return store.load(folder).records


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The whole program


def test_a_run_ends_with_0_and_a_row_for_every_case(whole):
    assert whole.done.returncode == 0
    assert [whole.row(name)[-1] for name in ("none", "segments:k=1", "segments:k=2")] == ["ok"] * 3
    assert whole.row("segments:k=8")[-1] == "skipped"


def test_progress_is_plain_lines_where_nobody_watches(whole):
    told = [line for line in whole.stderr() if line.startswith("[")]

    assert [line.partition(": ")[0] for line in told] == [
        "[1/8] mlp none round 1",
        "[2/8] mlp segments:k=1 round 1",
        "[3/8] mlp segments:k=2 round 1",
        "[4/7] mlp segments:k=8 round 1",  # it has no second round
        "[5/7] mlp segments:k=2 round 2",
        "[6/7] mlp segments:k=1 round 2",
        "[7/7] mlp none round 2",
    ]
    assert not {"\x1b", "\r"} & set(whole.done.stderr)


def test_a_run_folder_holds_what_it_should_and_no_more(whole):
    logs = {f"logs/{record.case.id}-{record.round}.log" for record in records(whole.folder)}

    assert set(files(whole.folder)) - logs == {
        "manifest.json",
        "trials.jsonl",
        "derived/table.csv",
        "derived/table.md",
        "derived/frontier.png",
    }


def places(folder: Path, pattern: str) -> list[str]:
    return [name for name, text in files(folder).items() if re.search(pattern.encode(), text)]


def test_no_file_tells_who_measured_and_where(whole):
    assert places(whole.folder, re.escape(SECRET)) == []
    assert places(whole.folder, re.escape(str(whole.home))) == []
    host = places(whole.folder, rf"\b{re.escape(socket.gethostname())}\b")
    assert [name for name in host if not name.endswith(".png")] == []  # pixels may spell a short name by chance


# Files and folders


def test_a_dry_run_prints_the_trials_and_leaves_nothing_behind(here, shared, capsys):
    words = ["--model", "mlp", "--segments", "1,2", "--device", "cpu", "--rounds", "2"]

    assert answer(["run", *words, "--dry-run"]) == 0

    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in printed] == [
        ["round", number, "mlp", strategy]
        for number, strategies in (("1", ["none", "segments:k=1", "segments:k=2"]),
                                   ("2", ["segments:k=2", "segments:k=1", "none"]))
        for strategy in strategies
    ]  # fmt: skip
    assert list(here.iterdir()) == []


# Options


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


# One JSON document


@pytest.mark.slow
def test_json_is_one_document_with_the_records_as_stored(here, shared, capsys):
    assert answer(["run", "--model", "mlp", "--segments", "2,8", *QUICK, "--json", "-o", "run"]) == 0

    document = json.loads(capsys.readouterr().out)
    stored = [json.loads(encode(record)) | {"evidence": "measured"} for record in records(here / "run")]
    assert document == {"schema": 1, "run": "run", "status": "complete", "exit_code": 0, "records": stored}
    assert stored[1]["case"]["strategy"] == "segments:k=2"
    assert type(stored[1]["readings"]["peak_bytes"]) is int
    assert [type(second) for second in stored[1]["readings"]["step_seconds"]] == [float]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--model mpl", 2),
        ("--frobnicate", 2),
        ("--dry-run", 2),
        ("--resume nowhere", 4),
    ],
)
def test_json_is_one_document_where_nothing_could_be_run(words, code, here, no_server, capsys):
    assert answer(["run", *words.split(), "--json"]) == code

    out, err = capsys.readouterr()
    document = json.loads(out)
    said = [f"gcprof: {document.pop('message')}", f"hint: {document.pop('hint')}"]
    assert document == {"schema": 1, "run": None, "status": "failed", "exit_code": code, "records": []}
    assert err.splitlines() == said


def test_every_model_that_is_listed_can_be_asked_for(here, no_server, capsys):
    member = {"torchvision:NAME": "resnet18", "timm:NAME": "resnet18", "hf:NAME": "gpt2"}
    entries = catalogue.entries(models.TABLE)
    listed = [entry.name.replace("NAME", member.get(entry.name, "")) for entry in entries]
    names = [name for name in listed if ".py:" not in name]  # a file of one's own is asked for in test_user_models
    codes = {name: answer(["run", "--model", name]) for name in names}

    assert set(codes.values()) == {70}  # it came as far as the server, which may not start here


# --- `gcprof run --resume` with other options: what was typed replaces a run's own words, and nothing else changes


OWN = {"model": "mlp", "strategies": "all", "segments": "1,2", "device": "cuda:0", "rounds": 2, "max_samples": 50}


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ({"strategies": "sqrt"}, {"strategies": "sqrt", "segments": None}),
        ({"segments": "4"}, {"strategies": None, "segments": "4"}),
        ({"samples": 9}, {"samples": 9, "max_samples": None}),
        ({"gpus": "a100"}, {"gpus": "a100", "device": None}),
        ({"device": "fake:t4"}, {"device": "fake:t4", "rounds": None, "max_samples": None}),
        ({"ranks": "2"}, {"ranks": "2"}),
    ],
    ids=str,
)
def test_one_word_replaces_what_it_names(word, replaced):
    assert spec.changed(Request(**OWN), Request(**word)) == Request(**{**OWN, **replaced})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is complete, of options that are not the usual ones."""
    monkeypatch.chdir(tmp_path)
    words = {"model": "mlp", "strategies": "all", "batch_size": "64", "device": "cpu", "rounds": 1, "samples": 1}
    plan = spec.check(Request(**words), lambda device: device).trials
    folder = examples.run(tmp_path / "run", [make.record(case=trial.case) for trial in plan]).folder
    manifest = msgspec.structs.replace(store.load(folder).manifest, plan=plan, words=words)
    (folder / "manifest.json").write_bytes(encode(manifest))
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, "--seed cannot be changed"),
        ({"model": "evilpkg.sub:make"}, "names code or a place that is not gcprof's own"),
        ({"no_word": 1}, "no_word"),
    ],
)
def test_a_run_without_words_or_with_hostile_ones_is_not_changed(run, words, message, capsys):
    document = msgspec.json.decode((run / "manifest.json").read_bytes())
    document["words"] = words
    if words is None:
        del document["words"]
    (run / "manifest.json").write_bytes(msgspec.json.encode(document))

    assert answer(["run", "--resume", "run", "--new-run", "--seed", "3"]) in (2, 4)

    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("shared")
def test_a_run_of_other_threads_goes_on_by_their_number(engine, tmp_path, capsys):
    here = engine.survey()["cpu"]
    many = msgspec.structs.replace(here, num_threads=(here.num_threads or 1) + 6)
    store.create(tmp_path / "run", plan=(Trial(case=make.case()),), command="", environment=many, sources={})

    assert answer(["run", "--resume", str(tmp_path / "run")]) == 2

    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.endswith(f"would be mixed: num_threads {many.num_threads} -> {here.num_threads}")
    assert hint.startswith(f"hint: OMP_NUM_THREADS={many.num_threads} gcprof run --resume {tmp_path / 'run'} goes on")
