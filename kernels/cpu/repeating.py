"""The text of a loop's body, repeated for several vectors at once.

Knows Python's indentation and assignments; knows nothing of specs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence


def side_by_side(lines: Sequence[str], count: int, lanes: int) -> list[str]:
    """The text of a row, for several vectors of rows: the same loops, in them everything once for each.

    Line by line where functions are long; the loads of a reduction stay together, or it takes a third longer.
    """
    names = {found[1] for line in lines if (found := re.match(r"\s*(\w+) = ", line))}
    word = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    loops = any(line.lstrip().startswith("for ") for line in lines)
    made: list[str] = []
    for (_, is_loop), run in itertools.groupby(lines, _place_in_text):
        texts = list(run)
        if is_loop or count == 1:
            made += [line.replace("NUMBER", "0") for line in texts]
            continue
        for part in [texts] if loops else [[line] for line in texts]:
            for number in range(count):
                renamed = (word.sub(rf"\1_{number}", line) for line in part)
                made += (line.replace("NUMBER", str(number * lanes)) for line in renamed)
    return made


def _place_in_text(line: str) -> tuple[int, bool]:
    """How far a line is indented, and whether it begins a loop."""
    text = line.lstrip()
    return len(line) - len(text), text.startswith("for ")
