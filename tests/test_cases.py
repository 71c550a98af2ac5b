"""Users' steps that are easily read wrong: what gcprof says is true, and docs/tables/cases.md has both."""

import re

import pytest

from tests.cases import CASES, PAGE, answers, line, wrong

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have", "ignore:Full backward hook is firing")
ROWS = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ")][1:]
# differences and where they are largest hang on the machine; the truth is held to them more closely
DIGITS = re.compile(r"\d\.\de[+-]\d\d(, worst in [\w.]+)?")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.command)
def test_gcprof_says_what_is_true_and_the_page_says_both(case):
    truth = case.truth()

    told = answers(case, truth)

    assert [wrong(answer.told, truth[strategy]) for strategy, answer in told.items()] == [{}] * len(told)
    written = ROWS[CASES.index(case)]
    assert DIGITS.sub("", written) == DIGITS.sub("", line(case, told, truth)), "run `just cases` and look at it"
