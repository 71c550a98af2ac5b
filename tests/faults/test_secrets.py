"""Secrets in the environment, in a command, in what a model says (row 58): knows nothing of what is measured."""

from pathlib import Path

import pytest

from profiler.cli import answer, output
from profiler.core import safe_files
from profiler.runs import store
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
def test_fault_58_no_file_of_a_run_holds_one_nor_what_was_printed(folder):
    assert [record.outcome for record in store.load(folder).records] == ["failed", "ok"]
    assert found(folder, Path("told.txt")) == []
    assert any(path.stat().st_size for path in (folder / "logs").iterdir())


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
def test_fault_58_one_in_the_command_is_refused_without_repeating_it(model, here, no_server, monkeypatch, capsys):
    monkeypatch.setenv("DB_PASSWORD", SECRETS["DB_PASSWORD"])

    assert answer(["run", "--model", model, "-o", "run"]) == 2

    err = capsys.readouterr().err
    assert "--model holds what looks like a secret" in err
    assert "swordfish" not in err
    assert SECRETS["DB_PASSWORD"] not in err
    assert list(here.iterdir()) == []


NAMES = """KAGGLE_KEY AZURE_STORAGE_KEY ENCRYPTION_KEY SECRET_KEY_BASE PGPASSWORD MYSQL_PWD DB_PASS GITHUB_PAT
npm_config__authToken SENTRY_DSN SLACK_WEBHOOK_URL SSHPASS JWT AUTH DBPASS ROOTPASS SESSION_COOKIE CLIENT_SECRET_ID
SECRETS HF_TOKENS api_key appkey db-key privatekey"""
BODY = "\n".join("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQy" for _ in range(6))
KEY_KINDS = ("OPENSSH ", "RSA ", "", "PGP ")


def key_block(kind: str) -> str:
    """A private key as programs write it."""
    name = f"{kind}PRIVATE KEY{' BLOCK' if kind == 'PGP ' else ''}"
    header = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123ABCD\n\n" if kind == "RSA " else ""
    checksum = "\n=aB3d" if kind == "PGP " else ""
    return f"-----BEGIN {name}-----\n{header}{BODY}\nAAAA=={checksum}\n-----END {name}-----"


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("written", [str, lambda text: repr(text)[1:-1], lambda text: text.replace("\n", "\r\n")])
def test_fault_58_a_private_key_is_hidden_whole(kind, written):
    assert safe_files.hide(f"before {written(key_block(kind))} after") == "before [hidden] after"


@pytest.mark.parametrize("name", NAMES.split())
def test_fault_58_a_variable_is_known_by_its_name(name, monkeypatch):
    monkeypatch.setenv(name, "correct horse")

    assert safe_files.hide("a correct horse") == "a [hidden]"


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
def test_fault_58_a_secret_is_known_by_its_shape(text, hidden):
    assert safe_files.hide(f"x {text} y") == f"x {hidden} y"
    assert safe_files.hide(hidden) == hidden


def test_fault_58_the_log_of_our_own_error_hides_it_too(here, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    monkeypatch.setattr(output, "FOLDER", str(here))

    path = output.keep_error(RuntimeError(f"401 for {SECRETS['HF_TOKEN']}"))

    assert Path(str(path)).read_text() == "RuntimeError: 401 for [hidden]\n"
