"""What fails in a user's file is told in their lines, not in ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler import catalogue
from profiler.case import Choice, Trial
from profiler.cli import answer
from tests import make

HERE = Path(__file__).parent / "user_models"
BROKEN = HERE / "broken.py"


def broken(factory: str) -> Trial:
    case = make.case("none", model=Choice(f"{BROKEN}:{factory}"), batch_size=None, samples=1, warmup=0)
    return Trial(case=case)


@pytest.mark.parametrize(
    ("words", "complaint", "hint"),
    [
        ("missing.py:make", "cannot read", "path/to/file.py:factory"),
        (f"{HERE}/lora.py:finetun", "has no function 'finetun'", "did you mean 'finetune'?"),
        (f"{HERE}/lora.py:finetune:rang=2", "has no option 'rang'", "did you mean 'rank'?"),
        ("tests.user_models.nowhere:make", "there is no module", "path/to/file.py:factory"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_starts(capsys, words, complaint, hint):
    code = answer(["run", "--model", words])

    error = capsys.readouterr().err
    assert code == 2
    assert complaint in error
    assert hint in error


def test_a_file_that_python_cannot_read_is_refused_with_its_line(tmp_path, capsys):
    (tmp_path / "typo.py").write_text("import torch\n\ndef make(:\n    pass\n")

    code = answer(["run", "--model", f"{tmp_path}/typo.py:make"])

    assert code == 2
    assert f"{tmp_path}/typo.py:3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("factory", "detail"),
    [
        ("raises", "KeyError: 'no such checkpoint' (broken.py:17)"),
        ("wrong_shape", "RuntimeError: addmm: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4) (broken.py:13)"),
        (
            "no_loss",
            "TypeError: the module's output holds no loss but a tensor of shape (2, 4): "
            "return a loss as the factory's third value",
        ),
        ("loss_of_many", "TypeError: the loss is no scalar but a tensor of shape (2, 4): return its mean or sum"),
        (
            "module_alone",
            "TypeError: the factory returned Net, not (module, batch[, loss[, optimizer]]) or a dict with these keys",
        ),
        (
            "batch_first",
            "TypeError: the factory returned (Tensor, Net), not (module, batch[, loss[, optimizer]]) "
            "or a dict with these keys",
        ),
    ],
)
def test_what_the_users_code_raises_is_the_outcome_with_the_users_line(engine, factory, detail):
    (record,) = engine.run([broken(factory)])

    assert (record.outcome, record.detail) == ("failed", detail)


def test_the_log_has_the_users_traceback_without_our_frames(engine):
    (record,) = engine.run([broken("wrong_shape")])

    log = (engine.logs / f"{record.case.id}-1.log").read_text()
    package = str(Path(catalogue.__file__).parent)
    assert "broken.py" in log
    assert "torch/nn/modules/linear.py" in log  # below the user's last line, where it happened
    assert package not in log
