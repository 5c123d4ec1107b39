"""A spec from its text: the inverse of `str(spec)`.

One line per operand and step, as `kernels.spec` writes them; knows nothing of what they mean.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from kernels.dtypes import DType, named
from kernels.errors import SpecError
from kernels.spec import (
    Call,
    Index,
    Literal,
    Load,
    LoopSpec,
    MatmulSpec,
    Operand,
    Reduce,
    Scan,
    Step,
    Store,
)

_LOOP = re.compile(r"loop (?P<name>.*)\((?P<axes>[^()]*)\) vector (?P<vector>\w+)")
_MATMUL = re.compile(
    r"matmul (?P<name>.*) batch (?P<batch>\d+) depth (?P<depth>\d+) (?P<dtype>\w+)"
    r" block (?P<rows>\d+)x(?P<vectors>\d+) vectors by (?P<walk>\w+)"
)
_OPERAND = re.compile(r"p(\d+): (\w+)(\[.*\])")
_STORE = re.compile(r"store p(\d+) \+?= (\w+)(?: at \[(\w+)\])?")
_LOAD = re.compile(r"load p(\d+)(?:\[(\w+)\])?")
_INDEX = re.compile(r"index p(\d+)")
_REDUCE = re.compile(r"(\w+) over (?:inner of (\w+)|rows of (\w+) into p(\d+)): (\w+)")
_SCAN = re.compile(r"scan (\w+) of (\w+)(?: by (\w+))?: (\w+)")
_CALL = re.compile(r"(\w+)\((.*)\): (\w+)")
_LITERAL = re.compile(r"(\S+): (\w+)")


def parse(text: str) -> LoopSpec | MatmulSpec:
    """The spec that `text` was printed from. Raises SpecError, naming the line, for anything else."""
    head, *lines = [line.strip() for line in text.strip().splitlines()] or [""]
    count = sum(_OPERAND.fullmatch(line) is not None for line in lines)
    operands = tuple(_operand(line, number) for number, line in enumerate(lines[:count]))
    steps = tuple(_step(line) for line in lines[count:])
    _check(operands, steps)
    if loop := _LOOP.fullmatch(head):
        axes = [axis.strip().rstrip("0123456789") for axis in loop["axes"].split(",") if axis.strip()]
        rows, inner = axes.count("row"), axes.count("inner")
        return LoopSpec(loop["name"], rows, inner, loop["vector"], operands, steps)
    if product := _MATMUL.fullmatch(head):
        batch, depth, rows, vectors = (int(product[k]) for k in ("batch", "depth", "rows", "vectors"))
        dtype = _dtype(product["dtype"], head)
        name, walk = product["name"], product["walk"]
        return MatmulSpec(name, batch, dtype, rows, vectors, operands, steps, depth, walk)
    raise SpecError(f"a spec starts with 'loop' or 'matmul', not {head!r}")


def _dtype(name: str, line: str) -> DType:
    try:
        return named(name)
    except KeyError:
        raise SpecError(f"no dtype {name} in {line!r}") from None


def _operand(line: str, number: int) -> Operand:
    match = _OPERAND.fullmatch(line)
    if match is None or int(match[1]) != number:
        raise SpecError(f"expected operand p{number}, found {line!r}")
    return Operand(_dtype(match[2], line), tuple(ast.literal_eval(match[3])))


def _step(line: str) -> Step:
    if match := _STORE.fullmatch(line):
        return Store(match[2], int(match[1]), match[3])
    out, equals, text = line.partition(" = ")
    if equals:
        if match := _LOAD.fullmatch(text):
            return Load(out, int(match[1]), match[2])
        if match := _INDEX.fullmatch(text):
            return Index(out, int(match[1]))
        if match := _REDUCE.fullmatch(text):
            combine, inner, rows, operand, dtype = match.groups()
            outer = rows is not None
            return Reduce(out, inner or rows, combine, _dtype(dtype, line), outer, int(operand or -1))
        if match := _SCAN.fullmatch(text):
            return Scan(out, match[2], match[1], _dtype(match[4], line), match[3])
        if match := _CALL.fullmatch(text):
            inputs = tuple(x.strip() for x in match[2].split(",") if x.strip())
            return Call(out, match[1], inputs, _dtype(match[3], line))
        if match := _LITERAL.fullmatch(text):
            return Literal(out, _number(match[1], line), _dtype(match[2], line))
    raise SpecError(f"no step of a spec: {line!r}")


def _number(text: str, line: str) -> float | int | bool:
    try:
        return float(text) if text.lstrip("-") in ("inf", "nan") else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise SpecError(f"{text} is no number in {line!r}") from None


def _check(operands: Sequence[Operand], steps: Sequence[Step]) -> None:
    """Every step uses operands that exist: machine code would take any number for an address."""
    for step in steps:
        number = getattr(step, "operand", -1)
        if number >= len(operands) or (number < 0 and isinstance(step, Load | Store | Index)):
            raise SpecError(f"{step} uses operand {number} of {len(operands)}")
