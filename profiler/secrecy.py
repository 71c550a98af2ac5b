"""What is a secret, by its name or by its shape: knows nothing of where texts come from or go.

Every text that is stored and not of our own making passes here: a command, what a failure said, what a trial printed.
"""

from __future__ import annotations

import os
import re

HIDDEN = "[hidden]"
SHORTEST = 8  # characters of a secret of the environment; shorter ones are words like any other
NAME = re.compile(
    r"(?:^|_|-)(?:token|secret|password|passwd|passphrase|credentials?|(?:api|access|secret|private)[_-]?key)$",
    re.IGNORECASE,
)
SHAPE = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/@'\"]+@"  # who logs in at an address, and how
    r"|\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abps]-)[\w-]{16,}"  # Hugging Face, OpenAI, GitHub, GitLab, Slack
    r"|\bAKIA[0-9A-Z]{16}\b"  # Amazon
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"  # a JSON web token
)
OPTION = re.compile(r"([\w-]+)=([^,|\s]+)")
HARMLESS = re.compile(r"[\d.+-]+(e[+-]?\d+)?|true|false|none", re.IGNORECASE)


def hide(text: str) -> str:
    """The text without values of the environment whose names say that they are secret, and without known shapes."""
    for value in _of_environment():
        text = text.replace(value, HIDDEN)
    return SHAPE.sub(lambda match: f"{match['scheme'] or ''}{HIDDEN}{'@' if match['scheme'] else ''}", text)


def is_in(text: str) -> bool:
    """Whether a word holds a secret; `key=value` holds one too where the key says so and the value is no number."""
    named = any(NAME.search(key) and not HARMLESS.fullmatch(value) for key, value in OPTION.findall(text))
    return named or hide(text) != text


def _of_environment() -> list[str]:
    """The longest first, since one may begin with another."""
    found = {value for name, value in os.environ.items() if NAME.search(name) and len(value) >= SHORTEST}
    return sorted(found, key=len, reverse=True)
