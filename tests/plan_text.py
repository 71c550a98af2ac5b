"""Plans of their text, as `profiler.planning.chain.render` writes it: `[1-3] 4 [5] 6-12`, `7-9:matmul`."""

import re

from profiler.planning.chain import Item, Plan, fault

TOKEN = re.compile(r"(?P<bracket>[\[\]])|(?P<first>\d+)(?:-(?P<last>\d+))?(?::(?P<option>[^\s\[\]]+))?|(?P<wrong>\S)")


def read(text: str) -> Plan:
    """What the text says, whether or not it is a plan of any chain."""
    stack: list[list[Item]] = [[]]
    options: list[tuple[int, str]] = []
    for token in TOKEN.finditer(text):
        assert not token["wrong"], text
        if token["bracket"] == "[":
            stack.append([])
        elif token["bracket"]:
            inner = tuple(stack.pop())
            stack[-1].append(inner)
        else:
            stages = range(int(token["first"]) - 1, int(token["last"] or token["first"]))
            stack[-1] += stages
            options += [(stage, token["option"]) for stage in stages if token["option"]]
    (items,) = stack
    return Plan(items=tuple(items), options=tuple(options))


def parse(text: str, num_stages: int) -> Plan:
    """A plan for this number of stages."""
    plan = read(text)
    assert fault(plan, num_stages) is None, text
    return plan
