"""Secrets in the environment, in a command, in what a model says (row 58): knows nothing of what is measured."""

import pytest

from profiler.cli import answer
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


@pytest.mark.nightly
def test_fault_58_no_file_of_a_run_holds_one_nor_what_was_printed(here):
    for name in ("bad", "good"):
        (here / f"{name}.py").write_text(MODEL.replace("LOSS", name))
    words = ["--strategies", "none", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0"]

    done = gcprof("run", "--model", "bad.py:make,good.py:make", *words, "-o", "run", cwd=here, **SECRETS)

    assert done.returncode == 1, done.stderr
    assert [record.outcome for record in store.load(here / "run").records] == ["failed", "ok"]
    texts = {path.name: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    texts |= {"printed": (done.stdout + done.stderr).encode()}
    secrets = (*SECRETS.values(), SHAPED, "tr0ub4dor")
    assert [(name, secret) for name, text in texts.items() for secret in secrets if secret.encode() in text] == []
    assert any(path.stat().st_size for path in (here / "run" / "logs").iterdir())


@pytest.mark.parametrize(
    "option", ["token=swordfish", f"where={SHAPED}", f"where={ADDRESS}", f"where={SECRETS['DB_PASSWORD']}"]
)
def test_fault_58_one_in_the_command_is_refused_without_repeating_it(option, here, no_server, monkeypatch, capsys):
    monkeypatch.setenv("DB_PASSWORD", SECRETS["DB_PASSWORD"])

    assert answer(["run", "--model", f"good.py:make:{option}", "-o", "run"]) == 2

    err = capsys.readouterr().err
    assert "--model holds what looks like a secret" in err
    assert not any(secret in err for secret in ("swordfish", SHAPED, "tr0ub4dor", SECRETS["DB_PASSWORD"]))
    assert list(here.iterdir()) == []


NAMES = """KAGGLE_KEY AZURE_STORAGE_KEY SECRET_KEY_BASE PGPASSWORD MYSQL_PWD DB_PASS GITHUB_PAT npm_config__authToken
SENTRY_DSN SLACK_WEBHOOK_URL JWT AUTH SESSION_COOKIE CLIENT_SECRET_ID SECRETS HF_TOKENS api_key db-key privatekey"""
BODY = 6 * "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQy\n"
RSA = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123ABCD\n\n"
KEYS = [
    f"-----BEGIN {name}-----\n{inside}\n-----END {name}-----"
    for name, inside in (
        ("OPENSSH PRIVATE KEY", f"{BODY}AAAA=="),
        ("RSA PRIVATE KEY", f"{RSA}{BODY}AAAA=="),
        ("PGP PRIVATE KEY BLOCK", f"{BODY}AAAA==\n=aB3d"),
    )
]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        *((written, "[hidden]") for key in KEYS for written in (key, repr(key)[1:-1], key.replace("\n", "\r\n"))),
        ("https://bob:p@ss@h/x", "https://[hidden]@h/x"),
        ("https://h/x?access_token=abc&n=5", "https://h/x?access_token=[hidden]&n=5"),
        ("https://h/x?n=5&X-Amz-Signature=abc", "https://h/x?n=5&X-Amz-Signature=[hidden]"),
        ("{'authorization': 'Basic Ym9iOnB3'}", "{'authorization': 'Basic [hidden]'}"),
        ("npm_" + "aB3" * 12, "[hidden]"),
        ("AIza" + "aB3-_" * 7, "[hidden]"),
    ],
)
def test_fault_58_a_secret_is_known_by_its_shape(text, hidden):
    assert safe_files.hide(f"x {text} y") == f"x {hidden} y"
    assert safe_files.hide(hidden) == hidden


def test_fault_58_a_variable_is_known_by_its_name(monkeypatch):
    for number, name in enumerate(NAMES.split()):
        monkeypatch.setenv(name, f"horse {number:03}")
        assert safe_files.hide(f"a horse {number:03}") == "a [hidden]", name
