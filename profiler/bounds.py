"""How large a number of a file may be, so that arithmetic with it stays finite: knows nothing of what is counted."""

from typing import Annotated

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # two of them add up within 64 bits
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]  # no measurement is larger; its square is still finite
