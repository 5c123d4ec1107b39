"""Functions of corresponding elements, with promotion and broadcasting.

Each is one primitive op or a few; reductions and movements are elsewhere. The names and arguments are
PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from compiler.ops import arithmetic, bits, compare
from compiler.ops import math as functions
from compiler.ops.op import Elementwise, Op
from framework import small
from framework.apply import apply_op
from framework.promotion import FLOATING, as_operand, convert, promoted, promoted_to_float, scalar
from framework.state import ambient
from framework.tensor import Tensor
from kernels import dtypes

_NOTHING: dict[str, Any] = {}


def labelled(name: str, result: Tensor) -> Tensor:
    """`result`, whose grad_fn prints as `name` although several ops made it."""
    if result._node is not None:
        result._node.label = name
    return result


def _tensor(x: Any) -> Tensor:
    x = as_operand(x)
    return x if isinstance(x, Tensor) else scalar(x)


def _named(function: Callable[..., Tensor], name: str, doc: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _unary(op: Elementwise, doc: str, *, integral: bool = True) -> Callable[..., Tensor]:
    """A function of one tensor; integers stay (`integral`) or become the default floating dtype."""

    def general(input: Any) -> Tensor:
        x = input if isinstance(input, Tensor) else _tensor(input)
        if not integral and x.dtype.category != FLOATING:
            x = convert(x, ambient.default_dtype)
        return apply_op(op, (x,), _NOTHING)

    return _named(small.unary(op, general), op.name, doc)


def promoting(op: Elementwise) -> Callable[[Any, Any], Tensor]:
    """A function of any two operands: `op` on what they are promoted to."""

    def general(input: Any, other: Any) -> Tensor:
        return apply_op(op, promoted(input, other), _NOTHING)

    return general


def _binary(op: Elementwise, name: str, doc: str) -> Callable[..., Tensor]:
    return _named(small.binary(op, promoting(op)), name, doc)


def _whole(op: Op, doc: str) -> Callable[..., Tensor]:
    """A rounding function: integers are whole already."""

    def function(input: Any) -> Tensor:
        x = _tensor(input)
        return (
            apply_op(op, (x,), _NOTHING)
            if x.dtype.category == FLOATING
            else apply_op(arithmetic.add, (x, 0), _NOTHING)
        )

    return _named(function, op.name, doc)


sqrt = _unary(functions.sqrt, "Square root; negative elements give nan.", integral=False)
rsqrt = _unary(functions.rsqrt, "1 / sqrt(input).", integral=False)
exp = _unary(functions.exp, "e ** input.", integral=False)
expm1 = _unary(functions.expm1, "exp(input) - 1, exact near 0.", integral=False)
log = _unary(functions.log, "Natural logarithm.", integral=False)
log1p = _unary(functions.log1p, "log(1 + input), exact near 0.", integral=False)
sin = _unary(functions.sin, "Sine of radians.", integral=False)
cos = _unary(functions.cos, "Cosine of radians.", integral=False)
tanh = _unary(functions.tanh, "Hyperbolic tangent.", integral=False)
erf = _unary(functions.erf, "Error function.", integral=False)
sigmoid = _unary(functions.sigmoid, "1 / (1 + exp(-input)).", integral=False)
reciprocal = _unary(arithmetic.reciprocal, "1 / input.", integral=False)
relu = _unary(arithmetic.relu, "max(input, 0); nan stays nan.")
square = _unary(arithmetic.square, "input * input.")
abs = _unary(arithmetic.abs, "Absolute value.")
sign = _unary(arithmetic.sign, "-1, 0 or 1 by the sign; 0 for nan.")
floor = _whole(arithmetic.floor, "Largest whole number not above.")
ceil = _whole(arithmetic.ceil, "Smallest whole number not below.")
trunc = _whole(arithmetic.trunc, "Whole part, towards zero.")
fix = trunc
absolute = abs
sgn = sign

maximum = _binary(arithmetic.maximum, "maximum", "The larger of two elements; nan from either wins.")
minimum = _binary(arithmetic.minimum, "minimum", "The smaller of two elements; nan from either wins.")
fmod = _binary(arithmetic.fmod, "fmod", "Remainder with the sign of `input`, as C's fmod.")
remainder = _binary(arithmetic.remainder, "remainder", "Remainder with the sign of `other`, as Python's %.")
floor_divide = _binary(
    arithmetic.floor_div, "floor_divide", "Quotient rounded to minus infinity, as Python's //."
)
eq = _binary(compare.eq, "eq", "input == other, elementwise.")
ne = _binary(compare.ne, "ne", "input != other, elementwise.")
lt = _binary(compare.lt, "lt", "input < other, elementwise.")
le = _binary(compare.le, "le", "input <= other, elementwise.")
gt = _binary(compare.gt, "gt", "input > other, elementwise.")
ge = _binary(compare.ge, "ge", "input >= other, elementwise.")
bitwise_and = _binary(bits.bitwise_and, "bitwise_and", "Bits set in both; logical and for bool.")
bitwise_or = _binary(bits.bitwise_or, "bitwise_or", "Bits set in either; logical or for bool.")
bitwise_xor = _binary(bits.bitwise_xor, "bitwise_xor", "Bits set in one only; logical xor for bool.")
bitwise_left_shift = _binary(bits.shift_left, "bitwise_left_shift", "Bits moved up; 0 from the width on.")
bitwise_right_shift = _binary(
    bits.shift_right, "bitwise_right_shift", "Bits moved down, filled with the sign."
)
bitwise_not = _unary(bits.invert, "Bits flipped; logical not for bool.")

greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne


def _negated(input: Any) -> Tensor:
    x = _tensor(input)
    if x.dtype is dtypes.bool_:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return apply_op(arithmetic.neg, (x,), _NOTHING)


neg = _named(small.unary(arithmetic.neg, _negated), "neg", "-input. Raises RuntimeError for bool.")
negative = neg


def positive(input: Tensor) -> Tensor:
    """`input` itself."""
    return input


_added = _binary(arithmetic.add, "add", "input + other.")


def add(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input + alpha * other."""
    return _added(input, other if isinstance(alpha, int) and alpha == 1 else mul(other, alpha))


def subtracted(input: Any, other: Any) -> Tensor:
    """The difference of any two operands."""
    operands = promoted(input, other)
    if any(isinstance(x, Tensor) and x.dtype is dtypes.bool_ for x in operands):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead."
        )
    return apply_op(arithmetic.sub, operands, _NOTHING)


_difference = small.binary(arithmetic.sub, subtracted)


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input - alpha * other. Raises RuntimeError for two bool tensors."""
    return _difference(input, other if isinstance(alpha, int) and alpha == 1 else mul(other, alpha))


subtract = sub


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return sub(other, input, alpha=alpha)


mul = _binary(arithmetic.mul, "mul", "input * other.")
multiply = mul


def divided(input: Any, other: Any) -> Tensor:
    """The quotient of any two operands."""
    return apply_op(arithmetic.div, promoted_to_float(input, other), _NOTHING)


_quotient = small.binary(arithmetic.div, divided)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; `rounding_mode` "floor" or "trunc" rounds and keeps integers."""
    if rounding_mode is None:
        return _quotient(input, other)
    if rounding_mode == "floor":
        return labelled("DivBackward1", floor_divide(input, other))
    if rounding_mode != "trunc":
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
        )
    x, y = promoted(input, other)
    first = x if isinstance(x, Tensor) else y
    if first.dtype.category == FLOATING:
        return labelled("DivBackward1", trunc(apply_op(arithmetic.div, (x, y), _NOTHING)))
    return apply_op(arithmetic.floor_div, (sub(x, fmod(x, y)), y), _NOTHING)


divide = true_divide = div


def pow(input: Any, exponent: Any) -> Tensor:
    """input ** exponent. Raises RuntimeError for an integer to a negative integer power."""
    if isinstance(exponent, int | float) and isinstance(input, Tensor) and input.dtype.category == FLOATING:
        # NumPy's general power is 10 to 60 times slower than the products it stands for.
        if exponent == 2:
            return labelled("PowBackward0", square(input))
        if exponent == 0.5:
            return labelled("PowBackward0", sqrt(input))
        if exponent == 3:
            return labelled("PowBackward0", mul(square(input), input))
    return apply_op(functions.pow, promoted(input, exponent), _NOTHING)


def float_power(input: Any, exponent: Any) -> Tensor:
    """input ** exponent in float64."""
    x, y = (convert(v, dtypes.float64) if isinstance(v, Tensor) else v for v in (input, exponent))
    return pow(x if isinstance(x, Tensor) else scalar(x, dtypes.float64), y)


def round(input: Any, *, decimals: int = 0) -> Tensor:
    """Nearest whole number, halves to even; or the nearest multiple of 10 ** -decimals."""
    x = _tensor(input)
    if x.dtype.category != FLOATING:
        return apply_op(arithmetic.add, (x, 0), _NOTHING)
    if decimals == 0:
        return apply_op(arithmetic.round, (x,), _NOTHING)
    scale = 10.0 ** math.fabs(decimals)
    if decimals > 0:
        return div(apply_op(arithmetic.round, (mul(x, scale),), _NOTHING), scale)
    return mul(apply_op(arithmetic.round, (div(x, scale),), _NOTHING), scale)


def fill(input: Tensor, value: Any) -> Tensor:
    """One number in the shape and dtype of `input`."""
    value = value if isinstance(value, Tensor) else scalar(value, input.dtype)
    return where(eq(input, input) & False, input, convert(value, input.dtype))


def frac(input: Tensor) -> Tensor:
    """The part behind the point, with the sign of the element."""
    return sub(input, trunc(input))


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition` holds, `other` elsewhere. Raises TypeError when only one of them is given."""
    if input is None or other is None:
        raise TypeError(
            "where needs condition, input and other; use nonzero(condition, as_tuple=True) for indices"
        )
    if not isinstance(condition, Tensor) or condition.dtype is not dtypes.bool_:
        kind = condition.dtype if isinstance(condition, Tensor) else type(condition).__name__
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got {kind}; compare with 0 first"
        )
    return apply_op(compare.where, (condition, *promoted(input, other)), _NOTHING)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """`input` limited to [min, max]; nan stays, and `max` wins over `min`. The gradient passes at the
    limits."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    limits = [limit for limit in (min, max) if limit is not None]
    x, *rest = promoted(input, *limits)
    if min is not None:
        x = _limit(x, rest[0], compare.lt)
    if max is not None:
        x = _limit(x, rest[-1], compare.gt)
    return labelled("ClampBackward0" if any(isinstance(n, Tensor) for n in limits) else "ClampBackward1", x)


def _limit(x: Tensor, limit: Any, beyond: Op) -> Tensor:
    outside = apply_op(beyond, (x, limit), _NOTHING)
    if isinstance(limit, Tensor):
        outside = bitwise_or(outside, isnan(limit))
    elif limit != limit:
        outside = bitwise_or(outside, eq(x, x))
    return apply_op(compare.where, (outside, limit, x), _NOTHING)


clip = clamp


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """`input`, at least `min`."""
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """`input`, at most `max`."""
    return clamp(input, max=max)


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """The point `weight` of the way from `input` to `end`, exact at both ends."""
    distance = sub(end, input)
    if not isinstance(weight, Tensor):
        near = weight < 0.5
        result = add(input, mul(distance, weight)) if near else sub(end, mul(distance, 1 - weight))
        return labelled("LerpBackward0", result)
    from_end = sub(end, mul(distance, sub(1.0, weight)))
    return labelled("LerpBackward1", where(lt(weight, 0.5), add(input, mul(distance, weight)), from_end))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    return labelled("AddcmulBackward0", add(input, mul(tensor1, tensor2), alpha=value))


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    return labelled("AddcdivBackward0", add(input, div(tensor1, tensor2), alpha=value))


def isnan(input: Tensor) -> Tensor:
    """Whether each element is nan."""
    return ne(input, input)


def isinf(input: Tensor) -> Tensor:
    """Whether each element is infinite."""
    return eq(abs(input), math.inf) if input.dtype.category == FLOATING else ne(input, input)


def isfinite(input: Tensor) -> Tensor:
    """Whether each element is neither nan nor infinite."""
    return lt(abs(input), math.inf) if input.dtype.category == FLOATING else eq(input, input)


def isposinf(input: Tensor) -> Tensor:
    """Whether each element is +inf."""
    return eq(input, math.inf) if input.dtype.category == FLOATING else ne(input, input)


def isneginf(input: Tensor) -> Tensor:
    """Whether each element is -inf."""
    return eq(input, -math.inf) if input.dtype.category == FLOATING else ne(input, input)


def nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """nan, inf and -inf replaced; infinities by the dtype's extremes when not given."""
    if input.dtype.category != FLOATING:
        return apply_op(arithmetic.add, (input, 0), _NOTHING)
    from_info = largest(input)
    x = where(isnan(input), nan, input)
    x = where(eq(input, math.inf), from_info if posinf is None else posinf, x)
    return where(eq(input, -math.inf), -from_info if neginf is None else neginf, x)


def largest(input: Tensor) -> float:
    """The largest finite value of a floating tensor's dtype."""
    return largest_finite(input.dtype)


def largest_finite(dtype: dtypes.DType) -> float:
    """The largest finite value of a floating dtype."""
    exponent, digits = {
        "float16": (16, 11),
        "bfloat16": (128, 8),
        "float32": (128, 24),
        "float64": (1024, 53),
    }[dtype.name]
    return math.ldexp(1 - 2.0**-digits, exponent)


def _truth(x: Any) -> Tensor:
    x = _tensor(x)
    return x if x.dtype is dtypes.bool_ else ne(x, 0)


def logical_not(input: Tensor) -> Tensor:
    """Whether each element is zero."""
    return bitwise_not(_truth(input))


def logical_and(input: Tensor, other: Tensor) -> Tensor:
    """Whether both elements are nonzero."""
    return bitwise_and(_truth(input), _truth(other))


def logical_or(input: Tensor, other: Tensor) -> Tensor:
    """Whether one of the elements is nonzero."""
    return bitwise_or(_truth(input), _truth(other))


def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """Whether exactly one of the elements is nonzero."""
    return bitwise_xor(_truth(input), _truth(other))


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger element; the other one where one is nan."""
    x, y = promoted(input, other)
    return where(isnan(x), y, where(isnan(y), x, maximum(x, y)))


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller element; the other one where one is nan."""
    x, y = promoted(input, other)
    return where(isnan(x), y, where(isnan(y), x, minimum(x, y)))


def exp2(input: Tensor) -> Tensor:
    """2 ** input."""
    return apply_op(functions.pow, (2.0, *promoted_to_float(input)), _NOTHING)


def log2(input: Tensor) -> Tensor:
    """Logarithm to base 2."""
    return labelled("Log2Backward0", div(log(input), math.log(2)))


def log10(input: Tensor) -> Tensor:
    """Logarithm to base 10."""
    return labelled("Log10Backward0", div(log(input), math.log(10)))


def tan(input: Tensor) -> Tensor:
    """Tangent of radians."""
    return labelled("TanBackward0", div(sin(input), cos(input)))


def sinh(input: Tensor) -> Tensor:
    """Hyperbolic sine, exact near 0."""
    # With e = exp(x) - 1: sinh x = (e + e / (e + 1)) / 2, whose terms do not cancel.
    e = expm1(abs(input))
    return labelled(
        "SinhBackward0", mul(mul(sign(input), 0.5), add(e, where(isinf(e), e, div(e, add(e, 1)))))
    )


def cosh(input: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    e = exp(abs(input))
    return labelled("CoshBackward0", mul(add(e, reciprocal(e)), 0.5))


def erfc(input: Tensor) -> Tensor:
    """1 - erf(input)."""
    return labelled("ErfcBackward0", sub(1.0, erf(input)))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)), the input first limited to [eps, 1 - eps] when `eps` is given."""
    x = input if eps is None else clamp(input, eps, 1 - eps)
    return labelled("LogitBackward0", log(div(x, sub(1, x))))


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)) without overflow."""
    x, y = promoted_to_float(input, other)
    top = maximum(x, y)
    # Equal infinities would give inf - inf.
    gap = where(eq(x, y), 0.0, neg(abs(sub(x, y))))
    return labelled("LogaddexpBackward0", add(top, log1p(exp(gap))))


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """sqrt(input**2 + other**2)."""
    return sqrt(add(square(input), square(other)))


def xlogy(input: Any, other: Any) -> Tensor:
    """input * log(other), 0 where input is 0 and `other` is not nan."""
    x, y = promoted_to_float(input, other)
    zero = logical_and(eq(x, 0), eq(y, y))
    return where(zero, 0.0, mul(x, log(where(zero, 1.0, y))))


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return mul(input, math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return mul(input, 180 / math.pi)
