"""Numba source to object code. Imported only when the cache has no object: it loads Numba.

Knows nothing of specs: a module text goes in, machine code for this host comes out.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from numba import cfunc, types

ADDRESS = types.int64


def compile_source(path: Path, function: str, arity: int) -> tuple[str, bytes]:
    """Compile `function` of the module file `path`, taking and returning 64-bit integers or nothing.

    Returns the symbol to call and the object file that defines it.
    """
    name = path.stem
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # Numba looks a function's module up by name
    found.loader.exec_module(module)
    result: Any = ADDRESS if function == "run" else types.void
    compiled: Any = cfunc(result(*(ADDRESS,) * arity), error_model="numpy")(getattr(module, function))
    library = compiled._library
    return compiled._wrapper_name, library._get_compiled_object()
