"""How the documentation is built: Markdown whose examples are executed, and the reference from the
docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
# The kernels that execute examples are other processes.
os.environ["PYTHONPATH"] = str(ROOT)

project = "Tracefuse"
author = "the Tracefuse authors"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "Tracefuse"
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
default_role = "code"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
# Links from these pages into the repository lead nowhere in the built documentation.
suppress_warnings = ["myst.xref_missing", "myst.header"]

# Pages of the reference: title, module as a user names it, and the module.
REFERENCE = {
    "framework": ("Tensors and functions: fw", "framework"),
    "tensor": ("Methods of a tensor", "framework.Tensor"),
    "autograd": ("Gradients: fw.autograd", "framework.autograd"),
    "layers": ("Layers: fw.nn", "framework.nn"),
    "functional": ("Functions behind layers: fw.nn.functional", "framework.nn.functional"),
    "initialisation": ("Initialisation: fw.nn.init", "framework.nn.init"),
    "optim": ("Optimizers: fw.optim", "framework.optim"),
    "schedules": ("Schedules: fw.optim.lr_scheduler", "framework.optim.lr_scheduler"),
    "data": ("Data: fw.utils.data", "framework.utils.data"),
    "profiler": ("The profiler: fw.profiler", "framework.profiler"),
    "cache": ("The cache: fw.cache", "framework.cache"),
}


def _members(name: str) -> list[tuple[str, Any]]:
    """Public names of a module, or of the tensor class, with what has help of its own."""
    if name == "framework.Tensor":
        owner: Any = importlib.import_module("framework").Tensor
        names = [n for n in dir(owner) if not n.startswith("_") and not n.endswith("_")]
        return [(n, inspect.getattr_static(owner, n)) for n in names]
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    found = []
    for n in listed or dir(module):
        thing = getattr(module, n)
        foreign = not listed and name != "framework" and getattr(thing, "__module__", name) != name
        if (
            not n.startswith("_")
            and callable(thing)
            and not foreign
            and not isinstance(thing, types.ModuleType)
        ):
            found.append((n, thing))
    return found


def _directive(owner: str, name: str, thing: Any, known: set[int]) -> str:
    is_method = owner == "framework.Tensor"
    if isinstance(thing, property):
        kind = "autoproperty"
    elif inspect.isclass(thing) and not is_method:
        kind = "autoclass"
    elif callable(thing) and not inspect.isroutine(thing):
        kind = "autodata"
    else:
        kind = "automethod" if is_method else "autofunction"
    # What has an entry already gets no second one that a search would find.
    again = "   :no-index:\n" if id(thing) in known else ""
    known.add(id(thing))
    return f".. {kind}:: {owner}.{name}\n{again}"


def _plain(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: bars and stars are no markup. Examples stay as they are."""
    for i, line in enumerate(lines):
        if not line.startswith("    ") and not line.lstrip().startswith(">>>"):
            lines[i] = line.replace("|", "\\|").replace("*", "\\*")


def _write_reference(app: Any) -> None:
    """One page for each module, which autodoc fills with the docstrings."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    known: set[int] = set()
    for page, (title, owner) in REFERENCE.items():
        lines = "\n".join(_directive(owner, n, thing, known) for n, thing in _members(owner))
        text = f"# {title}\n\n```{{eval-rst}}\n{lines}\n```\n"
        path = folder / f"{page}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> None:
    """Write the reference before the pages are read."""
    app.connect("builder-inited", _write_reference)
    app.connect("autodoc-process-docstring", _plain)
