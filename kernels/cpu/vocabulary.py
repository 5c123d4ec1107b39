"""The scalar vocabulary as words on explicit vectors, and combinations across lanes.

Floating functions come from `vector_math`; integers and bits are here. Words are typed by their operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from kernels import dtypes, philox
from kernels.cpu import vector_math
from kernels.cpu.intrinsics import EXPORTS, I32, LANES, LLVM, VECTOR, Vector
from kernels.cpu.words import word
from kernels.spec import COMBINE, identity

Emit = Callable[..., ir.Value]
WORDS: dict[str, Any] = {}


def _word(name: str, arity: int, emit: Emit, result: str | None = None) -> None:
    """Export word `name`; `emit(builder, dtype, *vectors)`; `result` is the dtype if not the operands'."""

    def generate(signature: Any) -> Any:
        dtype = dtypes.named(signature.args[-1].dtype)

        def code(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            return emit(builder, dtype, *args)

        return code

    def signature(operands: tuple[Any, ...]) -> Any:
        if not all(isinstance(x, Vector) for x in operands):
            return None
        made = (VECTOR[result] if result else operands[-1])(*operands)
        return made, generate(made)

    if arity == 1:
        WORDS[name] = word(lambda typing, x: signature((x,)))
    elif arity == 2:
        WORDS[name] = word(lambda typing, x, y: signature((x, y)))
    else:
        WORDS[name] = word(lambda typing, x, y, z: signature((x, y, z)))


def _constant(vector: ir.Value, value: Any) -> ir.Constant:
    return ir.Constant(vector.type, [value] * LANES)


def _by_kind(floating: Emit, integer: Emit) -> Emit:
    return lambda b, dtype, *xs: floating(b, *xs) if dtype.is_floating_point else integer(b, dtype, *xs)


def _math(name: str) -> Emit:
    return lambda b, dtype, *xs: vector_math.FUNCTIONS[name](b, *xs)


def _compare(operator: str) -> Emit:
    def emit(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> ir.Value:
        if dtype.is_floating_point:
            # Only != is true of NaN.
            return (b.fcmp_unordered if operator == "!=" else b.fcmp_ordered)(operator, x, y)
        return (b.icmp_signed if dtype.is_signed else b.icmp_unsigned)(operator, x, y)

    return emit


def _integer_abs(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed("<", x, _constant(x, 0)), b.neg(x), x) if dtype.is_signed else x


def _extreme(operator: str) -> Emit:
    def emit(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select((b.icmp_signed if dtype.is_signed else b.icmp_unsigned)(operator, x, y), x, y)

    return emit


def _truncated(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """C's quotient and remainder. A divisor of 0 (checked before) or of -1 (min // -1 traps) is replaced by
    1.
    """
    if not dtype.is_signed:
        y = b.select(b.icmp_unsigned("==", y, _constant(y, 0)), _constant(y, 1), y)
        return b.udiv(x, y), b.urem(x, y)
    minus_one = b.icmp_signed("==", y, _constant(y, -1))
    unsafe = b.or_(minus_one, b.icmp_signed("==", y, _constant(y, 0)))
    safe = b.select(unsafe, _constant(y, 1), y)
    return b.select(minus_one, b.neg(x), b.sdiv(x, safe)), b.srem(x, safe)


def _signs_differ(b: ir.IRBuilder, remainder: ir.Value, y: ir.Value) -> ir.Value:
    zero = _constant(remainder, 0)
    differ = b.icmp_signed("<", b.xor(remainder, y), zero)
    return b.and_(b.icmp_signed("!=", remainder, zero), differ)


def _integer_floor_div(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> ir.Value:
    quotient, remainder = _truncated(b, dtype, x, y)
    if not dtype.is_signed:
        return quotient
    return b.select(_signs_differ(b, remainder, y), b.sub(quotient, _constant(x, 1)), quotient)


def _integer_remainder(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> ir.Value:
    remainder = _truncated(b, dtype, x, y)[1]
    return (
        b.select(_signs_differ(b, remainder, y), b.add(remainder, y), remainder)
        if dtype.is_signed
        else remainder
    )


def _integer_pow(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> ir.Value:
    """Square and multiply over every bit an exponent can have; wraps like the eager loop."""
    one, zero, result = _constant(x, 1), _constant(x, 0), _constant(x, 1)
    for bit in range(8 * dtype.itemsize - dtype.is_signed):
        odd = b.icmp_unsigned("!=", b.and_(b.lshr(y, _constant(y, bit)), one), zero)
        result, x = b.select(odd, b.mul(result, x), result), b.mul(x, x)
    return result


def _shift(left: bool) -> Emit:
    def emit(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value, y: ir.Value) -> ir.Value:
        bits = 8 * dtype.itemsize
        inside = b.icmp_unsigned("<", y, _constant(y, bits))  # a negative amount is huge when unsigned
        amount = b.select(inside, y, _constant(y, bits - 1 if dtype.is_signed and not left else 0))
        if not left and dtype.is_signed:
            return b.ashr(x, amount)
        return b.select(inside, (b.shl if left else b.lshr)(x, amount), _constant(x, 0))

    return emit


def _random_bits(
    b: ir.IRBuilder, dtype: dtypes.DType, seed: ir.Value, offset: ir.Value, i: ir.Value
) -> ir.Value:
    """Philox4x32-10 as in kernels/philox.py, on 64-bit lanes that hold 32-bit words."""
    low, half = _constant(i, 0xFFFFFFFF), _constant(i, 32)

    def halves(x: ir.Value) -> tuple[ir.Value, ir.Value]:
        return b.and_(x, low), b.lshr(x, half)

    c0, c1 = halves(b.ashr(i, _constant(i, 2)))
    c2, c3 = halves(offset)
    k0, k1 = halves(seed)
    for _ in range(philox.ROUNDS):
        p0 = b.mul(c0, _constant(i, philox.MULTIPLIERS[0]))
        p1 = b.mul(c2, _constant(i, philox.MULTIPLIERS[1]))
        c0, c1 = b.xor(b.xor(b.lshr(p1, half), c1), k0), b.and_(p1, low)
        c2, c3 = b.xor(b.xor(b.lshr(p0, half), c3), k1), b.and_(p0, low)
        k0 = b.and_(b.add(k0, _constant(i, philox.WEYL[0])), low)
        k1 = b.and_(b.add(k1, _constant(i, philox.WEYL[1])), low)
    word = b.and_(i, _constant(i, 3))
    result = c3
    for number, c in ((2, c2), (1, c1), (0, c0)):
        result = b.select(b.icmp_unsigned("==", word, _constant(i, number)), c, result)
    return result


for _name, _float, _int in (
    (
        "add",
        lambda b, x, y: b.fadd(x, y),
        lambda b, d, x, y: b.or_(x, y) if d is dtypes.bool_ else b.add(x, y),
    ),
    ("sub", lambda b, x, y: b.fsub(x, y), lambda b, d, x, y: b.sub(x, y)),
    (
        "mul",
        lambda b, x, y: b.fmul(x, y),
        lambda b, d, x, y: b.and_(x, y) if d is dtypes.bool_ else b.mul(x, y),
    ),
    ("floor_div", vector_math.FUNCTIONS["floor_div"], _integer_floor_div),
    ("remainder", vector_math.FUNCTIONS["remainder"], _integer_remainder),
    ("fmod", vector_math.FUNCTIONS["fmod"], lambda b, d, x, y: _truncated(b, d, x, y)[1]),
    ("maximum", vector_math.FUNCTIONS["maximum"], _extreme(">")),
    ("minimum", vector_math.FUNCTIONS["minimum"], _extreme("<")),
    ("pow", vector_math.FUNCTIONS["pow"], _integer_pow),
):
    _word(_name, 2, _by_kind(_float, _int))
_word("div", 2, lambda b, d, x, y: b.fdiv(x, y))
_word("neg", 1, _by_kind(lambda b, x: b.fneg(x), lambda b, d, x: b.neg(x)))
_word("abs", 1, _by_kind(vector_math.FUNCTIONS["abs"], _integer_abs))
for _name in ("sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "sigmoid"):
    _word(_name, 1, _math(_name))
for _name in ("floor", "ceil", "trunc", "round"):
    _word(_name, 1, _by_kind(vector_math.FUNCTIONS[_name], lambda b, d, x: x))
for _name, _operator in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    _word(_name, 2, _compare(_operator), result="bool")
_word("and_", 2, lambda b, d, x, y: b.and_(x, y))
_word("or_", 2, lambda b, d, x, y: b.or_(x, y))
_word("xor", 2, lambda b, d, x, y: b.xor(x, y))
_word("invert", 1, lambda b, d, x: b.not_(x))
_word("shift_left", 2, _shift(left=True))
_word("shift_right", 2, _shift(left=False))
_word("where", 3, lambda b, d, c, x, y: b.select(c, x, y))
_word("random_bits", 3, _random_bits)


def _across_lanes(combine: str) -> None:
    """`reduce_add(v)` …: all lanes combined in a fixed tree, the result in every lane."""

    def emit(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value) -> ir.Value:
        step = LANES // 2
        while step:
            order = ir.Constant(ir.VectorType(I32, LANES), [(lane + step) % LANES for lane in range(LANES)])
            x = _EMIT[combine](b, dtype, x, b.shuffle_vector(x, x, order))
            step //= 2
        return x

    _word(f"reduce_{combine}", 1, emit)


_EMIT: dict[str, Emit] = {
    "add": _by_kind(lambda b, x, y: b.fadd(x, y), lambda b, d, x, y: b.add(x, y)),
    "mul": _by_kind(lambda b, x, y: b.fmul(x, y), lambda b, d, x, y: b.mul(x, y)),
    "max": _by_kind(vector_math.FUNCTIONS["maximum"], _extreme(">")),
    "min": _by_kind(vector_math.FUNCTIONS["minimum"], _extreme("<")),
}
for _name in COMBINE:
    _across_lanes(_name)


def _recurrence(b: ir.IRBuilder, d: dtypes.DType, x: ir.Value, factor: ir.Value, y: ir.Value) -> ir.Value:
    """factor * x + y, and y where x is zero."""
    nothing = b.fcmp_ordered("==", x, _constant(x, 0.0))
    return b.select(nothing, y, b.fadd(b.fmul(factor, x), y))


def _scan(combine: str) -> Emit:
    """Each lane combined with all before it, and with `before`. Rounded sums and products go lane by lane."""

    def emit(b: ir.IRBuilder, dtype: dtypes.DType, before: ir.Value, x: ir.Value) -> ir.Value:
        if dtype.is_floating_point and combine in ("add", "mul"):
            return _lane_by_lane(b, x, before, lambda total, lane: _EMIT[combine](b, dtype, total, lane(x)))
        first = _constant(x, identity(combine, dtype))
        for step in (2**k for k in range(LANES.bit_length() - 1)):
            order = [lane + LANES - step for lane in range(LANES)]  # `step` lanes of nothing move in
            shifted = b.shuffle_vector(first, x, ir.Constant(ir.VectorType(I32, LANES), order))
            x = _EMIT[combine](b, dtype, x, shifted)
        return _EMIT[combine](b, dtype, before, x)

    return emit


def _lane_by_lane(b: ir.IRBuilder, x: ir.Value, total: ir.Value, combine: Callable[..., Any]) -> ir.Value:
    """The totals after each lane; `combine(total, lane)` takes what `lane` gives of a vector."""
    result = x
    for number in range(LANES):
        one = ir.Constant(ir.VectorType(I32, LANES), [number] * LANES)
        total = combine(total, lambda vector, one=one: b.shuffle_vector(vector, vector, one))
        order = [LANES + lane if lane == number else lane for lane in range(LANES)]
        result = b.shuffle_vector(result, total, ir.Constant(ir.VectorType(I32, LANES), order))
    return result


def _scan_recurrence(
    b: ir.IRBuilder, dtype: dtypes.DType, before: ir.Value, factor: ir.Value, x: ir.Value
) -> ir.Value:
    return _lane_by_lane(
        b, x, before, lambda total, lane: _recurrence(b, dtype, total, lane(factor), lane(x))
    )


def _last_lane(b: ir.IRBuilder, dtype: dtypes.DType, x: ir.Value) -> ir.Value:
    return b.shuffle_vector(x, x, ir.Constant(ir.VectorType(I32, LANES), [LANES - 1] * LANES))


for _name, _function in COMBINE.items():
    _word(f"scan_{_function}", 2, _scan(_name))
_word("recurrence", 3, _recurrence)
_word("scan_recurrence", 3, _scan_recurrence)
_word("last_lane", 1, _last_lane)


def _scatter_add(name: str) -> None:
    """`scatter_add_float32(base, offsets, value, active)`: lane after lane, so that equal offsets add up in
    order.
    """
    kind = LLVM[name]

    @word
    def scatter_add(typing: Any, base: Any, offsets: Any, value: Any, active: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            base, offsets, value, active = args
            pointer = builder.inttoptr(base, kind.as_pointer())
            add = builder.fadd if dtypes.named(name).is_floating_point else builder.add
            for lane in range(LANES):
                at = ir.Constant(I32, lane)
                with builder.if_then(builder.extract_element(active, at)):
                    place = builder.gep(pointer, [builder.extract_element(offsets, at)])
                    builder.store(add(builder.load(place), builder.extract_element(value, at)), place)
            return context.get_dummy_value()

        return types.void(types.int64, VECTOR["int64"], VECTOR[name], VECTOR["bool"]), emit

    WORDS[f"scatter_add_{name}"] = scatter_add


for _name in ("uint8", "int8", "int16", "int32", "int64", "float32", "float64"):
    _scatter_add(_name)

# Generated sources import words by name from this module.
globals().update(EXPORTS | WORDS)
