"""Secrets in the environment, in a command, in what a model says (row 58): knows nothing of what is measured."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer, process
from profiler.core import secret_filter
from profiler.core.errors import UserError
from profiler.engines import capped_log, child, error_record
from profiler.request import spec
from profiler.request.spec import Request
from profiler.runs import store
from profiler.workflows import command_text
from tests.program import gcprof

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "correct-horse-battery",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY",
    "DB_PASSWORD": "hunter2-3fa9c1",
}
SHAPED = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
ADDRESS = "https://alice:tr0ub4dor@example.org/models"
MODEL = f"""
import os
import torch

def make(batch_size=4, where="here"):
    for name in {list(SECRETS)!r}:
        print(name, os.environ[name], flush=True)
    print("at {ADDRESS} with {SHAPED}", end="")
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.randn(batch_size, 4), LOSS

def good(output, batch):
    return output.sum()

def bad(output, batch):
    raise RuntimeError("refused " + " ".join(os.environ[name] for name in {list(SECRETS)!r}) + " {ADDRESS}")
"""
PEM = "-----BEGIN KEY-----\n" + "\n".join(f"line {number} of the key" for number in range(5)) + "\n-----END KEY-----"
HARMLESS_TEXTS = [
    "transformer:token=5", "mine.py:f:tokens=many", "mlp:width=3", "hf:bert", "a@b/c", "mine.py:f:key=value",
    "mine.py:f:monkey=yes,num_keys=4,sort_key=name", "https://host/path/user@host?n=5", "npm_config_registry_of_mine",
    "file:///home/me@work/mine.py", "the bearer of news",
]  # fmt: skip
EXPORTS = ("csv", "json", "md", "latex", "parquet", "tensorboard")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the real program with secrets all around, and everything that can be made of it."""
    home = tmp_path_factory.mktemp("secrets")
    (home / "mine.py").write_text(MODEL.replace("LOSS", "bad"))
    (home / "good.py").write_text(MODEL.replace("LOSS", "good"))
    words = ["--strategies", "none", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0"]
    model = "mine.py:make,good.py:make"
    done = gcprof("run", "--model", model, *words, "-o", "run", cwd=home, **SECRETS)
    assert done.returncode == 1, done.stderr
    (home / "told.txt").write_text(done.stdout + done.stderr)
    return home


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return next(path.parent for path in home.rglob("manifest.json"))


def found(*places: Path, secrets: tuple[str, ...] = (*SECRETS.values(), SHAPED, "tr0ub4dor")) -> list[tuple[str, str]]:
    """Which secrets stand in which files."""
    files = [path for place in places for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file()]
    assert files
    return [(secret, path.name) for path in files for secret in secrets if secret.encode() in path.read_bytes()]


@pytest.mark.nightly
def test_fault_58_no_file_of_a_run_holds_one_nor_what_was_printed(folder: Path):
    assert [record.outcome for record in store.load(folder).records] == ["failed", "ok"]
    assert found(folder, Path("told.txt")) == []
    assert any(path.stat().st_size for path in (folder / "logs").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPORTS)
def test_fault_58_nor_does_an_export(kind: str, folder: Path, tmp_path: Path):
    assert answer(["export", str(folder), "--to", kind, "-o", str(tmp_path / "exported")]) == 0

    assert found(tmp_path / "exported") == []


@pytest.mark.slow
@pytest.mark.parametrize("level", ["none", "default", "all"])
def test_fault_58_nor_does_a_report(level: str, folder: Path, tmp_path: Path):
    assert answer(["report", str(folder), "-o", str(tmp_path / "report.html"), "--redact", level]) == 0

    assert found(tmp_path / "report.html") == []


def test_fault_58_nor_does_a_picture_or_a_block_to_paste(folder: Path, tmp_path: Path, capsys: Any):
    assert answer(["plot", str(folder), "-o", str(tmp_path / "memory.svg"), "--kind", "memory"]) == 0
    assert answer(["show", str(folder), "--format", "md"]) == 0
    (tmp_path / "pasted.md").write_text(capsys.readouterr().out)

    assert found(tmp_path) == []


@pytest.mark.nightly
def test_fault_58_nor_does_the_doctor_tell_one(tmp_path: Path):
    done = gcprof("doctor", "--paste", cwd=tmp_path, **SECRETS)
    (tmp_path / "pasted.md").write_text(done.stdout + done.stderr)

    assert done.returncode == 0
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "model",
    [
        "good.py:make:token=swordfish",
        "good.py:make:api_key=swordfish",
        f"good.py:make:where={SHAPED}",
        f"good.py:make:where={ADDRESS}",
        "good.py:make:where=hunter2-3fa9c1",
    ],
)
def test_fault_58_one_in_the_command_is_refused_without_repeating_it(
    model: str, here: Path, no_server: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setenv("DB_PASSWORD", SECRETS["DB_PASSWORD"])

    assert answer(["run", "--model", model, "-o", "run"]) == 2

    first, hint = capsys.readouterr().err.splitlines()
    assert first == "gcprof: --model holds what looks like a secret, and every record would hold it too"
    assert hint == "hint: let your file read it from the environment"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_fault_58_what_is_no_secret_is_left_alone(text: str):
    assert not secret_filter.is_in(text)
    assert secret_filter.hide(text) == text


@pytest.mark.parametrize("cut", [1, 20, 4000])
def test_fault_58_a_log_hides_one_that_comes_in_pieces(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    data = b"\x00\xff" + b"." * 5000 + SECRETS["HF_TOKEN"].encode() + b"\nthe end"
    log = capped_log.Log(tmp_path / "trial.log")

    for start in range(0, len(data), cut):
        log.write(data[start : start + cut])
    log.close()

    assert (tmp_path / "trial.log").read_bytes() == b"\x00\xff" + b"." * 5000 + b"[hidden]\nthe end"


def logged(path: Path, *pieces: bytes) -> bytes:
    log = capped_log.Log(path)
    for piece in pieces:
        log.write(piece)
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("secret", [SECRETS["HF_TOKEN"], "contraseña-señor", PEM], ids=["ascii", "accents", "lines"])
@pytest.mark.parametrize("end", [0, 1, 4086, 4096, 5000])
@pytest.mark.parametrize("cut", [37, 1 << 16])
def test_fault_58_wherever_a_secret_stands_a_log_hides_it(
    secret: str, end: int, cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", secret)
    data = b"." * 5000 + secret.encode() + b"y" * end

    found = logged(tmp_path / "log", *(data[start : start + cut] for start in range(0, len(data), cut)))

    assert found == b"." * 5000 + b"[hidden]" + b"y" * end


@pytest.mark.parametrize("before", range(60, 101, 4))
@pytest.mark.parametrize("after", [0, 10, 50, 80, 100, 10_000])
@pytest.mark.parametrize("shaped", [True, False])
def test_fault_58_nor_does_a_secret_across_the_cap_stand_in_a_log(
    before: int, after: int, shaped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    secret = SHAPED if shaped else SECRETS["HF_TOKEN"]
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setattr(capped_log, "LOG_BYTES", 80)
    monkeypatch.setattr(capped_log, "TAIL_BYTES", 50)
    data = b"." * before + b" " + secret.encode() + b" " * after + secret.encode() + b" " * 40

    found = logged(tmp_path / "log", data)

    assert not [start for start in range(len(secret) - 5) if secret[start : start + 6].encode() in found]
    assert found.count(b"[hidden]") in (1, 2)


def test_fault_58_the_last_it_printed_holds_none_of_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSH_PRIVATE_KEY", PEM)
    log = capped_log.Log(tmp_path / "log")

    log.write(f"the key is {PEM}".encode())
    before = log.last_line()
    log.close()

    assert before == log.last_line() == "the key is [hidden]"


def test_fault_58_nor_does_a_failure_that_begins_with_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSH_PRIVATE_KEY", PEM)

    assert error_record._first_line(RuntimeError(f"refused {PEM}\nnext")) == "refused [hidden]"


def test_fault_58_what_is_no_result_is_hidden_before_it_is_written_as_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SSH_PRIVATE_KEY", "señor-" + PEM)
    mine, _ = socket.socketpair()
    one = child.Child(mine, "entry", "text", log=tmp_path / "log")

    one.keep(b'{"record": "' + b"." * 1000 + ("señor-" + PEM).encode())
    one._log.close()

    assert b"se" not in (tmp_path / "log").read_bytes().replace(b"result", b"")


NAMES = """KAGGLE_KEY AZURE_STORAGE_KEY ENCRYPTION_KEY SECRET_KEY_BASE PGPASSWORD MYSQL_PWD DB_PASS GITHUB_PAT
npm_config__authToken SENTRY_DSN SLACK_WEBHOOK_URL
SSHPASS JWT MY_JWT AUTH DOCKER_AUTH DBPASS PGPASS ROOTPASS SESSION_COOKIE COOKIES CLIENT_SECRET_ID ROLE_SECRETID SECRETS
APP_SECRETS TOKENS HF_TOKENS"""
KEY_OWNERS = ["api", "app", "auth", "service", "application", "account", "db", "database", "client", "private", "priv"]
KEY_NAMES = [f"{owner}{joint}key" for owner in KEY_OWNERS for joint in ("", "_", "-")]  # as detect-secrets knows them
HARMLESS_NAMES = """PWD OLDPWD INIT_CWD GIT_ASKPASS SSH_ASKPASS SSH_AUTH_SOCK MONKEY KEYBOARD KEY_FILE NUM_KEYS COMPASS
HOME TOKENIZERS_PARALLELISM AUTHOR XAUTHORITY SECRETARY COOKIECUTTER_CONFIG HOCKEY BYPASS"""
BODY = "\n".join("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQy" for _ in range(6))
KEY_KINDS = ("OPENSSH ", "RSA ", "DSA ", "EC ", "ENCRYPTED ", "", "PGP ", "SSH2 ENCRYPTED ")


def key_block(kind: str, *, body: str = BODY) -> str:
    """A private key as programs write it."""
    rule, space = ("----", " ") if kind.startswith("SSH2") else ("-----", "")
    name = f"{kind}PRIVATE KEY{' BLOCK' if kind == 'PGP ' else ''}"
    header = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123ABCD\n\n" if kind in ("RSA ", "DSA ") else ""
    checksum = "\n=aB3d" if kind == "PGP " else ""
    begin, end = (f"{rule}{space}{word} {name}{space}{rule}" for word in ("BEGIN", "END"))
    return f"{begin}\n{header}{body}\nAAAA=={checksum}\n{end}"


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("written", [str, lambda text: repr(text)[1:-1], lambda text: text.replace("\n", "\r\n")])
def test_fault_58_a_private_key_is_hidden_whole(kind: str, written: Any):
    assert secret_filter.hide(f"before {written(key_block(kind))} after") == "before [hidden] after"


def test_fault_58_so_is_a_key_of_putty_and_one_that_does_not_end():
    putty = f"PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nPrivate-Lines: 6\n{BODY}"

    assert secret_filter.hide(f"{putty}\nthe end") == "[hidden]\nthe end"
    assert secret_filter.hide(key_block("")[:300]) == "[hidden]"


def test_fault_58_the_words_of_a_key_alone_hide_nothing_behind_them():
    text = "it begins with -----BEGIN PRIVATE KEY-----\nsee the documentation of openssl"

    assert secret_filter.hide(text) == "it begins with [hidden]\nsee the documentation of openssl"
    assert secret_filter.hide("-----BEGIN PUBLIC KEY-----\n" + BODY) == "-----BEGIN PUBLIC KEY-----\n" + BODY


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("cut", [1, 37, 200, 1 << 16])
def test_fault_58_a_log_hides_a_key_that_comes_line_by_line(kind: str, cut: int, tmp_path: Path):
    data = f"before\n{key_block(kind)}\nafter\n".encode()

    found = logged(tmp_path / "log", *(data[start : start + cut] for start in range(0, len(data), cut)))

    assert found == b"before\n[hidden]\nafter\n"


@pytest.mark.slow
def test_fault_58_what_looks_like_a_key_for_ever_is_not_held_for_ever(tmp_path: Path):
    log = capped_log.Log(tmp_path / "log")

    log.write(b"-----BEGIN PRIVATE KEY-----\n")
    for _ in range(3000):
        log.write(BODY.encode() + b"\n")
    held = len(log._held)
    log.close()

    assert held < 3 * secret_filter.LONGEST  # as of a line that does not end


@pytest.mark.parametrize("name", [*NAMES.split(), *KEY_NAMES, *map(str.upper, KEY_NAMES)])
def test_fault_58_a_variable_is_known_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "correct horse")

    assert secret_filter.hide("a correct horse") == "a [hidden]"


@pytest.mark.parametrize("name", HARMLESS_NAMES.split())
def test_fault_58_a_variable_that_sounds_like_it_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "correct horse")

    assert secret_filter.hide("a correct horse") == "a correct horse"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("HTTPS://bob:pw@h/x", "HTTPS://[hidden]@h/x"),
        ("https://bob:p@ss@h/x", "https://[hidden]@h/x"),
        ("https://h/x?access_token=abc&n=5", "https://h/x?access_token=[hidden]&n=5"),
        ("https://h/x?n=5&X-Amz-Signature=abc", "https://h/x?n=5&X-Amz-Signature=[hidden]"),
        ("Authorization: Bearer abcdefgh.ijklmnop", "Authorization: Bearer [hidden]"),
        ("{'authorization': 'Basic Ym9iOnB3'}", "{'authorization': 'Basic [hidden]'}"),
        ("ASIA" + "A1" * 8, "[hidden]"),
        ("ghr_" + "aB3" * 12, "[hidden]"),
        ("npm_" + "aB3" * 12, "[hidden]"),
        ("AIza" + "aB3-_" * 7, "[hidden]"),
    ],
)
def test_fault_58_a_secret_is_known_by_its_shape(text: str, hidden: str):
    assert secret_filter.hide(f"x {text} y") == f"x {hidden} y"
    assert secret_filter.hide(hidden) == hidden


def test_fault_58_no_line_takes_long_to_look_through():
    for piece in (b"a.", b"-eyJ", b"?a_", b"://a", b"hf_", b"bearer ", b"-----BEGIN PRIVATE KEY-----\n\n"):
        began = time.process_time()
        secret_filter.hide_bytes(piece * ((1 << 16) // len(piece)))
        assert time.process_time() - began < 3, piece


def test_fault_58_the_log_of_our_own_error_hides_it_too(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    monkeypatch.setattr(process, "FOLDER", str(here))

    path = process.keep_error(RuntimeError(f"401 for {SECRETS['HF_TOKEN']}"))

    assert Path(str(path)).read_text() == "RuntimeError: 401 for [hidden]\n"


def test_twin_58_without_hiding_a_failure_and_a_log_would_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    error = RuntimeError(f"401 for {SECRETS['HF_TOKEN']}")
    hidden = error_record._first_line(error)
    monkeypatch.setattr(error_record, "hide", lambda text: text)
    monkeypatch.setattr(capped_log, "hide_bytes", lambda data: data)

    log = capped_log.Log(tmp_path / "trial.log")
    log.write(SECRETS["HF_TOKEN"].encode())
    log.close()

    assert hidden == "401 for [hidden]"
    assert SECRETS["HF_TOKEN"] in error_record._first_line(error)
    assert found(tmp_path) != []


def test_twin_58_without_hiding_the_stored_command_would_hold_it(monkeypatch: pytest.MonkeyPatch):
    words = ("run", "--model", f"a.py:b:where={ADDRESS}")
    hidden = command_text.command_line(words)
    monkeypatch.setattr(command_text, "hide", lambda text: text)

    assert "tr0ub4dor" not in hidden
    assert "tr0ub4dor" in command_text.command_line(words)


def test_twin_58_without_the_check_every_case_would_hold_it(monkeypatch: pytest.MonkeyPatch):
    request = Request(model="mlp", blocks=f"layers.{SHAPED}")
    with pytest.raises(UserError, match="looks like a secret"):
        spec.check(request, lambda word: "cpu")

    monkeypatch.setattr(secret_filter, "is_in", lambda text: False)

    assert {trial.case.blocks for trial in spec.check(request, lambda word: "cpu").trials} == {f"layers.{SHAPED}"}
