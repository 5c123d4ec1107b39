"""Lines: what a user calls a file, and the line of a gradient."""

from __future__ import annotations

import copy
import pickle
import sys
from types import SimpleNamespace

import pytest

from compiler import where
from compiler.where import GradientLine, made_at, user_line


def line_in(filename: str) -> str:
    """The line that code of such a file is said to be at."""
    names = {"user_line": user_line}
    exec(compile("\nfound = user_line()", filename, "exec"), names)
    return str(names["found"])


def test_files_are_called_by_their_names() -> None:
    assert line_in("/somewhere/train.py") == "train.py:2"
    assert line_in("<stdin>") == "<stdin>:2"


def test_cells_are_called_by_their_numbers() -> None:
    assert line_in("<ipython-input-7-0123abcd>") == "cell 7:2"
    assert line_in("/tmp/ipykernel_12/345.py") == "345.py:2"  # without IPython nothing more is known


def test_a_notebook_numbers_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/tmp/ipykernel_9/8.py": 3}))
    kind = SimpleNamespace(_instance=shell)
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", SimpleNamespace(InteractiveShell=kind))
    assert line_in("/tmp/ipykernel_9/8.py") == "cell 3:2"
    monkeypatch.setattr(kind, "_instance", None)
    assert where._named("/tmp/ipykernel_9/8.py") == "8.py"


def test_the_projects_own_files_are_left_out() -> None:
    assert where.is_own(where.__file__) and not where.is_own(__file__)
    assert user_line().startswith("test_where.py:")


def test_a_gradient_line_is_a_line_that_knows_its_op() -> None:
    line = GradientLine("train.py:9", "log", "model.py:3")
    assert line == "train.py:9" and line.words == "gradient of log at model.py:3"
    assert GradientLine("train.py:9", "log", "").words == "gradient of log"
    for other in (pickle.loads(pickle.dumps(line)), copy.copy(line)):
        assert (other, other.op, other.made) == ("train.py:9", "log", "model.py:3")
    # Plans on disk are found by the text of their nodes.
    assert repr(line) != repr(GradientLine("train.py:9", "log", "model.py:4"))
    with made_at(line):
        assert user_line() is line
