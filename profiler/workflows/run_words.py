"""The model and the settings of a run, as one types them: where a command takes a model, it takes a run too."""

from __future__ import annotations

from msgspec import UNSET

from profiler.core.errors import UserError
from profiler.runs import store
from profiler.runs.find import run_folder
from profiler.workflows.consent import refuse_cases

FIELDS = ("model", "optimizer", "batch_size", "precision", "accumulate", "blocks")


def words_of(word: str) -> dict[str, str]:
    """Return the words of the run's model and settings, several of one joined by commas.

    Raises UserError for a script's run, and for a run whose words lead to code.
    """
    run = store.load(run_folder(word))
    if run.is_script:
        message = f"'{word}' is the run of a script, and this command takes a model"
        raise UserError(message, hint=f"gcprof show {word} names its command")
    cases = list(dict.fromkeys(trial.case.baseline for trial in run.manifest.plan))
    refuse_cases(cases, word, named=())
    values = {field: list(dict.fromkeys(getattr(case, field) for case in cases)) for field in FIELDS}
    return {field: ",".join(map(str, of)) for field, of in values.items() if not {None, UNSET} & {*of}}
