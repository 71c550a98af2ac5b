"""Users' own files that are missing, broken, of another signature, or give no loss: told in their lines, not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import catalogue
from profiler.core.case import Choice, Trial
from tests import make
from tests.faults.trials import log_of

HERE = Path(__file__).parents[1] / "user_models"
BROKEN = HERE / "broken.py"
PACKAGE = str(Path(catalogue.__file__).parents[1])


def of(model: str) -> Trial:
    return Trial(case=make.case("none", model=Choice(model), batch_size=None, samples=1, warmup=0))


def broken(factory: str) -> Trial:
    return of(f"{BROKEN}:{factory}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint", "hint"),
    [
        ("missing.py:make", "cannot read", "path/to/file.py:factory"),
        (f"{HERE}/lora.py:finetun", "has no function 'finetun'", "did you mean 'finetune'?"),
        (f"{HERE}/lora.py:finetune:rang=2", "has no option 'rang'", ":finetune:rank=2'?"),
        ("tests.user_models.nowhere:make", "there is no module", "path/to/file.py:factory"),
    ],
)
def test_fault_23_what_cannot_be_had_is_refused_before_anything_starts(capsys, words, complaint, hint):
    code = answer(["run", "--model", words])

    error = capsys.readouterr().err
    assert code == 2
    assert complaint in error
    assert hint in error


def test_fault_23_a_file_that_raises_when_it_is_imported_is_told_with_its_line(tmp_path, engine):
    (tmp_path / "early.py").write_text("import torch\n\nraise OSError('no such disk')\n\ndef make():\n    pass\n")

    (record,) = engine.run([of(f"{tmp_path}/early.py:make")])

    assert (record.outcome, record.detail) == ("failed", "OSError: no such disk (early.py:3)")
    assert PACKAGE not in log_of(engine, record).decode()


def test_fault_23_a_function_that_wants_more_is_told_what_and_how_to_give_it(tmp_path, engine):
    (tmp_path / "wants.py").write_text("def make(config, *, depth):\n    pass\n")

    (record,) = engine.run([of(f"{tmp_path}/wants.py:make")])

    assert record.outcome == "failed"
    assert "missing a required argument: 'config'" in record.detail
    assert "give every parameter a default" in record.detail


@pytest.mark.parametrize(
    ("factory", "detail"),
    [
        ("raises", "KeyError: 'no such checkpoint' (broken.py:17)"),
        ("wrong_shape", "RuntimeError: addmm: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4) (broken.py:13)"),
        (
            "module_alone",
            "TypeError: the factory returned Net, not (module, batch[, loss[, optimizer]]) or a dict with these keys",
        ),
        (
            "batch_first",
            "TypeError: the factory returned (Tensor, Net), not (module, batch[, loss[, optimizer]]) "
            "or a dict with these keys",
        ),
        (
            "loss_before_batch",
            "TypeError: the factory returned (Net, function, Tensor), not (module, batch[, loss[, optimizer]]) "
            "or a dict with these keys",
        ),
    ],
)
def test_fault_23_what_the_users_code_raises_is_the_outcome_with_the_users_line(engine, factory, detail):
    (record,) = engine.run([broken(factory)])

    assert (record.outcome, record.detail) == ("failed", detail)


@pytest.mark.parametrize(
    ("factory", "detail"),
    [
        (
            "no_loss",
            "the module's output holds no loss but a tensor of shape (2, 4): "
            "return a loss as the factory's third value",
        ),
        ("loss_of_many", "the loss must be a scalar, got a tensor of shape (2, 4): return its mean or sum"),
        ("loss_of_integers", "the loss is of torch.int64, which has no gradient: leave it in floating point"),
    ],
)
def test_fault_24_a_step_without_a_loss_is_invalid_with_its_reason(engine, factory, detail):
    (record,) = engine.run([broken(factory)])

    assert (record.outcome, record.detail) == ("invalid", detail)
