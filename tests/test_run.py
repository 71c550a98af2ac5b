"""`gcprof run` from its words to its files: once as a whole program, then on the fork server that all tests share."""

from __future__ import annotations

import io
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core import catalogue
from profiler.core.case import Choice, Trial, encode
from profiler.core.record import Record
from profiler.engines.local import Local
from profiler.runs import store
from profiler.training import models
from profiler.views.tables.progress import Follow
from tests import make
from tests.conftest import run_folder
from tests.mnist_files import write_mnist
from tests.program import Done, gcprof, next_words

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


def complaint(err: str) -> str:
    """The one line that says what is wrong; at most a hint comes after it."""
    first, *rest = err.splitlines()
    assert first.startswith("gcprof: ")
    assert len(rest) <= 1
    assert all(line.startswith("hint: ") for line in rest)
    return first


# The whole program


def test_a_run_ends_with_0_and_a_row_for_every_case(whole: Whole):
    assert whole.done.returncode == 0
    assert [whole.row(name)[-1] for name in ("none", "segments:k=1", "segments:k=2")] == ["ok"] * 3
    assert whole.row("segments:k=8")[-1] == "skipped"


def test_more_segments_than_modules_are_skipped_with_the_reason(whole: Whole):
    assert "segments:k=8: skipped: only 5 blocks for 8 segments" in whole.done.stdout.splitlines()


def test_the_real_split_stands_beside_the_number_of_segments(whole: Whole):
    assert whole.row("segments:k=2")[1] == "2+3"  # 5 modules in 2 segments: 5 // 2 = 2, and the rest is plain


def test_progress_is_plain_lines_where_nobody_watches(whole: Whole):
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


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()

    with Follow(terminal) as follow:
        follow.show(make.record(), left=3)

    assert "\x1b" in terminal.getvalue()
    assert "1/4" in terminal.getvalue()


def test_the_last_line_is_a_command_that_works(whole: Whole, here: Path, capsys: pytest.CaptureFixture[str]):
    words = next_words(whole.done.stderr)

    assert answer(words) == 0
    assert (here / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_folder_holds_what_it_should_and_no_more(whole: Whole):
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


def test_no_file_tells_who_measured_and_where(whole: Whole):
    assert places(whole.folder, re.escape(SECRET)) == []
    assert places(whole.folder, re.escape(str(whole.home))) == []
    host = places(whole.folder, rf"\b{re.escape(socket.gethostname())}\b")
    assert [name for name in host if not name.endswith(".png")] == []  # pixels may spell a short name by chance


# Files and folders


@pytest.mark.nightly
@pytest.mark.parametrize("spelling", ["-o {}", "-o{}", "--output {}", "--output={}"])
def test_the_stored_command_names_no_folder(
    spelling: str, here: Path, shared: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = here / "private" / "run"
    words = ["run", "--model", "mlp", "--strategies", "none", *QUICK, *spelling.format(folder).split()]
    monkeypatch.setattr(sys, "argv", ["gcprof", *words])

    assert answer(words) == 0

    command = store.load(folder).manifest.command
    assert command.endswith(spelling.format("run"))
    assert places(folder, "private") == []


def test_a_dry_run_prints_the_trials_and_leaves_nothing_behind(here: Path, shared: None, capsys: Any):
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


def test_a_run_without_a_folder_named_is_below_results(here: Path, shared: None, capsys: Any):
    assert answer(["run", "--model", "mlp", "--strategies", "none", *QUICK]) == 0

    assert run_folder(here).parent == here / "results"


# Options


def test_options_win_over_the_sweep_file(here: Path, shared: None, capsys: Any):
    (here / "sweep.toml").write_text('model = "mlp"\nsegments = [1, 2]\nrounds = 3\ndevice = "cpu"\n')

    assert answer(["run", "--config", "sweep.toml", "--rounds", "1", "--segments", "4", "--dry-run"]) == 0

    assert [line.split()[1:4] for line in capsys.readouterr().out.splitlines()] == [
        ["1", "mlp", "none"],
        ["1", "mlp", "segments:k=4"],
    ]


def test_verified_gradients_are_in_the_table(whole: Whole):
    assert "bit-equal" in whole.row("segments:k=2")
    assert "not compared" not in whole.done.stdout


@pytest.mark.slow
def test_kept_gradients_and_adam_are_measured(here: Path, shared: None, capsys: Any):
    words = ["--model", "mlp", "--strategies", "none", "--optimizer", "sgd,adam", "--keep-grads"]

    assert answer(["run", *words, *QUICK]) == 0

    sgd, adam = (record.readings for record in records(run_folder(here)))
    weights = 4 * (10 * 20 + 20 + 20 * 20 + 20 + 20 * 5 + 5)  # bytes
    assert sgd.static_bytes is not None
    assert adam.static_bytes is not None
    assert sgd.start_bytes == weights + weights + sgd.static_bytes["inputs"]  # the gradients of the step before
    assert sgd.static_bytes["optimizer"] == 0
    assert adam.static_bytes["optimizer"] >= 2 * weights


def test_without_kept_gradients_a_step_starts_without_them(whole: Whole):
    readings = records(whole.folder)[0].readings

    assert readings.static_bytes is not None
    assert readings.start_bytes == readings.static_bytes["parameters"] + readings.static_bytes["inputs"]


@pytest.mark.slow
def test_mnist_from_files_is_recorded_as_such_and_not_where_it_was(here: Path, shared: None, capsys: Any):
    write_mnist(here / "my-data", 6)
    model = ["--model", "mnist-cnn:channels=2,layers=5", "--batch-size", "4", "--strategies", "none"]

    assert answer(["run", *model, *QUICK, "--data", str(here / "my-data"), "-o", "run"]) == 0

    (record,) = records(here / "run")
    assert record.built is not None
    assert (record.case.data, record.built.data) == ("files", "mnist")
    assert "mnist" in capsys.readouterr().out
    assert places(here / "run", str(here)) == []


# Bad words

BAD_WORDS = [
    ("--frobnicate", 2, "no such option: --frobnicate"),
    ("--model mpl", 2, "no model is called 'mpl'"),
    ("--model mlp:wdith=3", 2, "no option 'wdith'"),
    ("--model mlp:width=0", 2, "width=0"),
    ("--model ,", 2, "empty item"),
    ("--strategies segments", 2, "needs k"),
    ("--optimizer sgd:lr=fast", 2, "lr=fast is not a number"),
    ("--segments -1", 2, "'-1'"),
    ("--segments 4..1", 2, "'4..1'"),
    ("--batch-size many", 2, "'many'"),
    ("--accumulate 0", 2, "'0'"),
    ("--blocks=", 2, "--blocks: '' names no block"),
    ("--samples 0", 2, "--samples: 0"),
    ("--precision-target 2", 2, "--precision-target: '2'"),
    ("--max-samples 5", 2, "--max-samples cannot be 5"),
    ("--max-seconds nan", 2, "--max-seconds cannot be nan"),
    ("--samples 5 --max-samples 9", 2, "--max-samples has no effect with --samples"),
    ("--rounds two", 2, "'--rounds'"),
    ("--device cuda:x", 2, "'cuda:x'"),
    ("--device cpu,cuda", 2, "more than one device"),
    ("--data nowhere", 2, "'nowhere'"),
    ("--data .", 2, "no effect on 'mlp'"),
    ("--config nowhere.toml", 2, "nowhere.toml"),
    ("--stage-limit nan", 2, "cannot be nan"),
    ("superfluous", 2, "superfluous"),
]
RESUMED = [
    ("--resume nowhere", 4, "is not a run"),
    ("--resume .", 4, "no manifest.json"),
    ("--resume RUN -o other", 2, "--output has no effect with --resume"),
    ("--resume RUN --dry-run", 2, "--resume has no effect with --dry-run"),
    ("--resume RUN --config sweep.toml", 2, "cannot read 'sweep.toml'"),
    ("--resume RUN --data .", 2, "--data has no effect on this run"),
    ("--new-run", 2, "--new-run has no effect without --resume"),
]


@pytest.mark.parametrize(("words", "code", "wrong"), [*BAD_WORDS, *RESUMED])
def test_a_bad_word_is_one_line_before_torch_is_imported(
    words: str, code: int, wrong: str, whole: Whole, here: Path, no_server: None, capsys: pytest.CaptureFixture[str]
):
    model = [] if "--model" in words or "--resume" in words else ["--model", "mlp"]
    before = files(whole.folder)

    assert answer(["run", *model, *words.replace("RUN", str(whole.folder)).split()]) == code

    out, err = capsys.readouterr()
    assert wrong in complaint(err)
    assert out == ""
    assert list(here.iterdir()) == []
    assert files(whole.folder) == before


def test_a_misspelt_flag_of_the_real_program_is_answered_with_the_nearest(tmp_path: Path):
    done = gcprof("run", "--modle", "mlp", cwd=tmp_path)

    assert done.returncode == 2
    assert "no such option: --modle (Possible options: --model" in done.stderr
    assert done.stdout == ""


# One JSON document


@pytest.mark.slow
def test_json_is_one_document_with_the_records_as_stored(here: Path, shared: None, capsys: Any):
    assert answer(["run", "--model", "mlp", "--segments", "2,8", *QUICK, "--json", "-o", "run"]) == 0

    document = json.loads(capsys.readouterr().out)
    stored = [json.loads(encode(record)) | {"evidence": "measured"} for record in records(here / "run")]
    assert document == {"schema": 1, "run": "run", "status": "complete", "exit_code": 0, "records": stored}
    assert stored[1]["case"]["strategy"] == "segments:k=2"
    assert type(stored[1]["readings"]["peak_bytes"]) is int
    assert [type(second) for second in stored[1]["readings"]["step_seconds"]] == [float]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["explain mlp", "plan mlp --budget 60%"])
def test_work_that_meets_its_limit_names_the_option(words: str, here: Path, capsys: pytest.CaptureFixture[str]):
    assert answer([*words.split(), "--stage-limit", "0.001"]) == 3

    assert "hint: --stage-limit 0.002" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--model mpl", 2),
        ("--frobnicate", 2),
        ("--rounds two", 2),
        ("--stage-limit 0", 2),
        ("--dry-run", 2),
        ("--resume nowhere", 4),
    ],
)
def test_json_is_one_document_where_nothing_could_be_run(
    words: str, code: int, here: Path, no_server: None, capsys: pytest.CaptureFixture[str]
):
    assert answer(["run", *words.split(), "--json"]) == code

    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": 1, "run": None, "status": "failed", "exit_code": code, "records": []}
    complaint(err)


# What becomes of trials


@pytest.mark.slow
def test_a_case_that_goes_wrong_has_no_further_rounds_and_stops_no_other(here: Path, shared: None, capsys: Any):
    kinds = {"kill": "crashed", "raise": "failed", "oom": "out_of_memory"}
    wanted = ",".join([*(f"tests.faulty:build:kind={kind}" for kind in kinds), "mlp"])

    assert answer(["run", "--model", wanted, "--strategies", "none", *QUICK, "--rounds", "2", "-o", "run"]) == 1

    outcomes = {(str(one.case.model), one.round): one.outcome for one in records(here / "run")}
    expected = {(f"tests.faulty:build:kind={kind}", 1): outcome for kind, outcome in kinds.items()}
    assert outcomes == {**expected, ("mlp", 1): "ok", ("mlp", 2): "ok"}
    assert "[5/5] mlp none round 2: ok" in capsys.readouterr().err


# Resuming


@pytest.fixture
def half(whole: Whole, here: Path) -> Path:
    """A copy of the whole run that ends in the middle of its third record."""
    folder = here / "half"
    folder.mkdir()
    (folder / "logs").mkdir()
    (folder / "manifest.json").write_bytes((whole.folder / "manifest.json").read_bytes())
    lines = (whole.folder / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "trials.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:100])
    return folder


@pytest.mark.slow
def test_a_torn_run_is_resumed_where_it_ends(half: Path, whole: Whole, shared: None, capsys: Any):
    assert answer(["run", "--resume", "half"]) == 0

    done = [(record.case, record.round) for record in records(half)]
    assert done == [(record.case, record.round) for record in records(whole.folder)]
    assert "the last line of trials.jsonl is torn" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_from_files_needs_them_again(here: Path, shared: None, engine: Local, capsys: Any):
    write_mnist(here / "data", 6)
    case = make.case(model=Choice("mnist-cnn:channels=2,layers=5"), batch_size=4, samples=1, data="files")
    store.create(
        here / "run", plan=(Trial(case=case),), command="gcprof run", environment=engine.survey()["cpu"], sources={}
    )

    refused = answer(["run", "--resume", "run"])
    resumed = answer(["run", "--resume", "run", "--data", str(here / "data")])

    assert (refused, resumed) == (2, 0)
    assert [record.outcome for record in records(here / "run")] == ["ok"]
    assert "hint: name their folder with --data" in capsys.readouterr().err


def test_every_model_that_is_listed_can_be_asked_for(here: Path, no_server: None, capsys: Any):
    listed = [entry.name.replace("NAME", "some") for entry in catalogue.entries(models.TABLE)]
    names = [name for name in listed if ".py:" not in name]  # a file of one's own is asked for in test_user_models
    codes = {name: answer(["run", "--model", name]) for name in names}

    assert set(codes.values()) == {70}  # it came as far as the server, which may not start here
