"""A file's text -> one that is damaged, by bytes or by what it says: knows nothing of who reads it."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

NUMBERS = (
    "1e400", "-1e400", "NaN", "nan", "Infinity", "-inf", "-0", "-0.0", "0", "-1", "1", "2", "0.5", "1e-320", "1e300",
    "1e18", str(2**31), str(2**53 + 1), str(2**62), str(2**63), str(2**64), "-" + str(2**62), "1" + "0" * 400,
    "9" * 5000, "0x10", "1_000", "01", "1.", "1e", "+1",
)  # fmt: skip
STRINGS = (
    "", " ", "none", "segments:k=2", "segments:k=-1", "segments:k=1e400", "segments:k=" + "9" * 5000, "all:", ":", "=",
    "x:k=", "x:=,=", "a,b", "fake:h100", "fake:", "cuda:99999999999", "../../x", "/dev/zero", "=cmd()", "</script>",
    "[/]", "[red", "$x$", "\\frac{", "%s %d {}", "{0.__class__}", "CON", "a\nb", "\r", "\0", "\x1b[31m", "\u202egnp",
    "\ud800", "x" * 10_000, "|", "`", "2026-13-99T99:99:99Z", "2026-11-20T17:49:00+99:99", "1e400", "nan", "null",
    "ok", "out_of_memory", "skipped", "invalid", "crashed", "time", "backward", "[1-3] 4", "[" * 500, "1-999999999",
    "\N{ZERO WIDTH JOINER}" * 50, "\N{COMBINING ACUTE ACCENT}" * 50, "$10^{99}$", "*", "layer.*", "(" * 200, "8|" * 50,
)  # fmt: skip
OTHERS = ("null", "true", "false", "[]", "{}", '""', "[[]]", '{"":{}}', "[null]", '{"a":1}', "[0]", "[1e300,-1e300]")
WORDS = (b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"\\", b"\xff", b"\xef\xbb\xbf", b"#", b"=", b"'''")
MARK = "\N{SYMBOL FOR RECORD SEPARATOR}"  # round the place of a raw token, in a file that has none of these


def mutated(text: bytes, chance: random.Random, *, kind: str) -> bytes:
    """The file with one to three changes; `kind` is json, jsonl or toml."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        change = chance.choice(BY_BYTES) if chance.random() < 0.35 else MEANT[kind]
        text = change(text, chance)
    return text


def _flipped(text: bytes, chance: random.Random) -> bytes:
    whole = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 8)) if whole else 0):
        whole[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    return bytes(whole)


def _cut(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def _dropped(text: bytes, chance: random.Random) -> bytes:
    first, last = _span(text, chance)
    return text[:first] + text[last:]


def _doubled(text: bytes, chance: random.Random) -> bytes:
    first, last = _span(text, chance)
    return text[:last] + text[first:last] * chance.choice((1, 1, 2, 50)) + text[last:]


def _inserted(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(WORDS) * chance.choice((1, 1, 3, 2000)) + text[at:]


def _swapped(text: bytes, chance: random.Random) -> bytes:
    """Two tokens in each other's place."""
    tokens = [match.span() for match in re.finditer(rb'"[^"\n]*"|[-+.\w]+', text)]
    if len(tokens) < 2:
        return text
    (a, b), (c, d) = sorted(chance.sample(tokens, 2))
    return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def _encoded(text: bytes, chance: random.Random) -> bytes:
    words = text.decode(errors="replace")
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: words.encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + text,
        lambda: gzip.compress(text),
        lambda: b"\0" * len(text),
        lambda: b"",
        lambda: chance.randbytes(200),
        lambda: text.replace(b"\n", b"\r\n"),
        lambda: words.encode("latin-1", errors="replace").replace(b"a", b"\xe4"),
    )
    return chance.choice(kinds)()


def _other_json(text: bytes, chance: random.Random) -> bytes:
    """A value of the document replaced, left out, twice or deep; what is no JSON any more is changed by bytes."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _flipped(text, chance)
    places = list(_places(document))
    if not places or MARK.encode() in text:
        return _flipped(text, chance)
    holder, key = chance.choice(places)
    value = holder[key]
    action = chance.choice(("put", "put", "put", "put", "near", "leave out", "twice", "deep", "more", "rename"))
    raw = ""
    if action == "leave out":
        del holder[key]
    elif action == "rename" and isinstance(holder, dict):
        holder[chance.choice(STRINGS)] = holder.pop(key)
    else:
        raw = _raw(action, key, value, chance)
        holder[key] = MARK
    return json.dumps(document).replace(json.dumps(MARK), raw, 1).encode(errors="surrogatepass")


def _raw(action: str, key: Any, value: Any, chance: random.Random) -> str:
    """What stands in the place of a value."""
    own = json.dumps(value)
    if action == "twice":
        return f"{own},{json.dumps(key)}:{_hostile(chance)}" if isinstance(key, str) else f"{own},{own}"
    if action == "deep":
        depth = chance.choice((3, 30, 70, 500, 100_000))
        return "[" * depth + own + "]" * depth if chance.random() < 0.5 else '{"a":' * depth + own + "}" * depth
    if action == "more" and isinstance(value, list) and value:
        return json.dumps(value * chance.choice((2, 10, 200)))
    if action == "near" and isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(
            chance.choice((-value, value * 2, value / 3, value + 1, float(value), str(value), -1 - value))
        )
    return _hostile(chance)


def _hostile(chance: random.Random) -> str:
    return chance.choice((chance.choice(NUMBERS), json.dumps(chance.choice(STRINGS)), chance.choice(OTHERS)))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every value with what holds it."""
    found, left = [], [document]
    while left:
        one = left.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        found += [(one, key) for key in keys]
        left += [one[key] for key in keys]
    return found


def _other_lines(text: bytes, chance: random.Random) -> bytes:
    """One line changed as JSON, or lines in another order, twice or gone."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return _inserted(text, chance)
    at = chance.randrange(len(lines))
    if chance.random() < 0.85:
        lines[at] = _other_json(lines[at], chance) + b"\n"
    else:
        chance.choice((lambda: chance.shuffle(lines), lambda: lines.append(lines[at]), lambda: lines.pop(at)))()
    return b"".join(lines)


def _other_toml(text: bytes, chance: random.Random) -> bytes:
    """The value of a key replaced, or its line twice, gone, or under another name."""
    lines = text.splitlines(keepends=True)
    keys = [number for number, line in enumerate(lines) if b"=" in line]
    if not keys:
        return _inserted(text, chance)
    at = chance.choice(keys)
    name, _, value = lines[at].partition(b"=")
    action = chance.choice(("put", "put", "put", "put", "twice", "leave out", "rename", "table", "dots"))
    new = {
        "put": lambda: name + b"= " + _hostile_toml(chance) + b"\n",
        "twice": lambda: lines[at] * 2,
        "leave out": lambda: b"",
        "rename": lambda: json.dumps(chance.choice(STRINGS)).encode() + b" =" + value,
        "table": lambda: chance.choice((b"[[", b"[")) * chance.choice((1, 200)) + name.strip() + b"]]\n" + lines[at],
        "dots": lambda: b".".join([name.strip()] * chance.choice((2, 2000))) + b" =" + value,
    }
    lines[at] = new[action]()
    return b"".join(lines)


def _hostile_toml(chance: random.Random) -> bytes:
    depth = chance.choice((2, 500, 20_000))
    dates = ("1979-05-27T07:32:00Z", "2026-99-99", "07:32:00")
    found = (_hostile(chance), chance.choice(dates), "[" * depth + "]" * depth, "{a = 1}", "[1, 'a', 2.5]")
    return chance.choice(found).encode(errors="surrogatepass")


def _span(text: bytes, chance: random.Random) -> tuple[int, int]:
    first = chance.randrange(len(text) + 1)
    return first, min(len(text), first + chance.choice((1, 4, 40, 400)))


BY_BYTES = (_flipped, _cut, _dropped, _doubled, _inserted, _swapped, _swapped, _encoded)
MEANT = {"json": _other_json, "jsonl": _other_lines, "toml": _other_toml}
