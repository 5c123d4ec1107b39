"""What kernels use of Python itself, as words: integer arithmetic, comparisons, truth and ranges.

Integers wrap at 64 bits; a range's step is positive.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from kernels.cpu.words import Word

INTEGER, REAL, TRUTH = types.int64, types.float64, types.boolean
LLVM: dict[types.Type, ir.Type] = {INTEGER: ir.IntType(64), REAL: ir.DoubleType(), TRUTH: ir.IntType(1)}
# Lowered to tuples: start, stop and step; of an iterator, the address of the next number, stop and step.
RANGE, ITERATOR = types.Opaque("kernel range"), types.Opaque("kernel range iterator")
PAIR = types.Pair(INTEGER, TRUTH)
BUILTINS: dict[Any, Word] = {}


def _builtin(key: Any, name: str, signature: Any, emit: Callable[..., Any]) -> None:
    made = signature, lambda context, builder, _, args: emit(builder, *args)
    BUILTINS[key] = Word(name, lambda typing, *arguments: made)


def _arithmetic(key: Any, instruction: str) -> None:
    signature = INTEGER(INTEGER, INTEGER)
    _builtin(key, instruction, signature, lambda builder, x, y: getattr(builder, instruction)(x, y))


def _comparison(key: Any, sign: str) -> None:
    signature = TRUTH(INTEGER, INTEGER)
    _builtin(key, sign, signature, lambda builder, x, y: builder.icmp_signed(sign, x, y))


def _truth(typing: Any, x: types.Type) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return args[0] if x is TRUTH else builder.icmp_signed("!=", args[0], ir.Constant(args[0].type, 0))

    return TRUTH(x), emit


def _negative(typing: Any, x: types.Type) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.fneg(args[0]) if x is REAL else builder.neg(args[0])

    return x(x), emit


def _range(typing: Any, *bounds: types.Type) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        zero, one = (ir.Constant(LLVM[INTEGER], n) for n in (0, 1))
        return ((zero, *args) if len(args) == 1 else tuple(args)) + (one,) * (len(args) < 3)

    return RANGE(*(INTEGER,) * len(bounds)), emit


def _iterate(builder: ir.IRBuilder, numbers: Any) -> Any:
    start, stop, step = numbers
    with builder.goto_entry_block():
        place = builder.alloca(start.type)
    builder.store(start, place)
    return place, stop, step


def _next(builder: ir.IRBuilder, iterator: Any) -> Any:
    place, stop, step = iterator
    number = builder.load(place)
    # No extent is near 2**63.
    builder.store(builder.add(number, step, flags=("nsw",)), place)  # pyright: ignore[reportCallIssue]
    return number, builder.icmp_signed("<", number, stop)


for _key, _name in (
    (operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul"), (operator.and_, "and_"),
    (operator.or_, "or_"), (operator.lshift, "shl"), (operator.rshift, "ashr"),
    (operator.iadd, "add"), (operator.isub, "sub"), (operator.imul, "mul"),
):  # fmt: skip
    _arithmetic(_key, _name)
for _key, _name in (
    (operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="), (operator.eq, "=="),
    (operator.ne, "!="),
):  # fmt: skip
    _comparison(_key, _name)
_builtin(operator.not_, "not", TRUTH(TRUTH), lambda builder, x: builder.not_(x))
_builtin("getiter", "iter", ITERATOR(RANGE), _iterate)
_builtin("iternext", "next", PAIR(ITERATOR), _next)
BUILTINS |= {
    bool: Word("bool", _truth),
    operator.neg: Word("neg", _negative),
    range: Word("range", _range),
}
