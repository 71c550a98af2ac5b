"""Python imports this at the start of every process of `pytest --machine NAME`: knows only where the doubles are."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests import machines  # it is found by the line above

sys.path.pop(0)
machines.inherit()
