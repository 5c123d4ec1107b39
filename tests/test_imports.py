"""The shape of the code base: layers, cycles, heavy modules, file sizes.

Reads sources and starts one process; imports nothing of the project.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Every package, with those it may import.
BELOW = {
    "kernels": {"kernels"},
    "compiler": {"kernels", "compiler"},
    "framework": {"kernels", "compiler", "framework"},
    "benchmarks": {"kernels", "compiler", "framework", "benchmarks"},
    "examples": {"framework"},
    "tests": {"kernels", "compiler", "framework", "tests", "benchmarks", "examples"},
}
# What may be imported inside a function, because only a use should pay for loading it.
HEAVY = {"numba", "llvmlite", "scipy", "sklearn", "triton", "cupy", "cupyx"}
LAZY_OWN = {"kernels.cpu.compile", "kernels.gpu.engine", "compiler.gpu.arrays"}
# Likewise what only looks inside: together it takes as long to load as all that a compiled call needs.
LAZY_OWN |= {"kernels.bench.measuring", "kernels.prepared", "kernels.roofline", "kernels.cpu.plain.run"}
LAZY_OWN |= {"compiler.facts", "framework.inspect.comparing", "framework.inspect.minifying"}
LAZY_OWN |= {"framework.inspect.lines", "framework.inspect.text", "framework.inspect.page"}
MOST_LINES = 600
_MAY_IMPORT = (ast.stmt, ast.ExceptHandler, ast.match_case)


def files(*packages: str) -> list[Path]:
    """Python files of packages, in a fixed order."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    """The dotted name a file is imported as."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST, path: Path) -> list[str]:
    """Dotted names of what an import statement brings: modules, or things in them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, f"{path}:{node.lineno}: relative import"
    assert node.module is not None, "an absolute import names its module"
    return [f"{node.module}.{alias.name}" for alias in node.names]


def is_type_checking(node: ast.AST) -> bool:
    """Whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports(path: Path) -> tuple[tuple[ast.AST, list[str], bool], ...]:
    """(statement, names, whether it is inside a function) of every import that runs."""
    found: list[tuple[ast.AST, list[str], bool]] = []
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while stack:
        node, inside = stack.pop()
        if names := imported(node, path):
            found.append((node, names, inside))
        if not is_type_checking(node):
            inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            # Expressions import nothing.
            stack += [(c, inside) for c in ast.iter_child_nodes(node) if isinstance(c, _MAY_IMPORT)]
    return tuple(found)


@pytest.mark.parametrize("package", sorted(BELOW))
def test_imports_point_downwards(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(package)
        for _, names, _ in imports(path)
        for name in names
        if name.split(".")[0] in BELOW and name.split(".")[0] not in BELOW[package]
    ]
    assert wrong == []


def test_only_heavy_modules_are_imported_in_functions() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {names[0]}"  # type: ignore[attr-defined]
        for path in files("kernels", "compiler", "framework")
        for node, names, inside in imports(path)
        if inside and names[0].split(".")[0] not in HEAVY and names[0].rpartition(".")[0] not in LAZY_OWN
    ]
    assert wrong == []


def test_no_import_cycles() -> None:
    modules = {module_name(path): path for path in files("kernels", "compiler", "framework")}
    after: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = {n for _, names, inside in imports(path) if not inside for n in names}
        # What is no module is a name in one.
        after[name] = {n if n in modules else n.rpartition(".")[0] for n in found} & modules.keys()
    assert _cycle(after) is None


def _cycle(after: dict[str, set[str]]) -> list[str] | None:
    """Modules that import each other in a ring, if there are any; a package counts as its __init__ file."""
    done: set[str] = set()
    for start in after:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                stack.append((name, True))
                stack += [(n, False) for n in sorted(after[name])]
    return None


def test_a_cycle_is_found() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) is not None


def test_import_framework_is_light() -> None:
    code = "import framework, sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    assert "framework" in loaded
    assert loaded & {"numba", "triton", "scipy", "torch", "llvmlite", "sklearn", "cupy", "jax"} == set()


@pytest.mark.parametrize("name", ["kernels", "compiler"])
def test_a_foreign_package_of_our_name_is_noticed(name: str, tmp_path: Path) -> None:
    foreign = tmp_path / name
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import framework"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0
    assert "ImportError" in result.stderr
    assert str(foreign / "__init__.py") in result.stderr


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): n
        for path in files(*BELOW)
        if (n := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}
