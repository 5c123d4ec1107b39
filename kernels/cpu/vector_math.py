"""Floating functions of the scalar vocabulary on LLVM vectors, and their accuracy, for kernel generators.

`FUNCTIONS[name](builder, x[, y])` emits code for `<W x float>` or `<W x double>` operands of any W, and
gives such a value. A lane's result never depends on its neighbours. NaN, infinities, signed zeros and
subnormals come out as NumPy has them. The mathematics is in elementary, power and exact; nothing here knows
Numba.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kernels.cpu import elementary, exact, power
from kernels.cpu.lanes import Lanes

Emit = Callable[..., ir.Value]


def _emit(function: Callable[..., Lanes]) -> Emit:
    def emit(builder: ir.IRBuilder, *operands: ir.Value) -> ir.Value:
        return function(*(Lanes(builder, x) for x in operands)).value

    return emit


def _intrinsic(name: str) -> Callable[..., Lanes]:
    return lambda x: x.intrinsic(name)


# On Lanes, or on what has their operators (kernels/cpu/plain).
MEANING: dict[str, Callable[..., Lanes]] = {
    "exp": elementary.exp,
    "expm1": elementary.expm1,
    "log": elementary.log,
    "log1p": elementary.log1p,
    "sin": elementary.sin,
    "cos": elementary.cos,
    "tanh": elementary.tanh,
    "erf": elementary.erf,
    "sigmoid": elementary.sigmoid,
    "pow": power.pow,
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": exact.rsqrt,
    "fmod": exact.fmod,
    "remainder": exact.remainder,
    "floor_div": exact.floor_div,
    "maximum": exact.maximum,
    "minimum": exact.minimum,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "abs": _intrinsic("fabs"),
}
FUNCTIONS: dict[str, Emit] = {name: _emit(function) for name, function in MEANING.items()}

# Largest error in units in the last place of the true value, (float32, float64), over all operands. The unit
# of a subnormal is the smallest float. Functions not listed give the bits of NumPy.
# Beyond 2**30, float64 sin and cos come from the C library.
ULP_BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (1.1, 1.1),
    "expm1": (1.4, 1.4),
    "log": (1.0, 1.0),
    "log1p": (1.5, 1.5),
    "sin": (1.1, 1.1),
    "cos": (1.1, 1.1),
    "tanh": (1.4, 1.4),
    "erf": (1.3, 1.1),
    "sigmoid": (2.5, 2.5),
    "pow": (0.6, 1.3),
}
