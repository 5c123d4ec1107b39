"""The scalar vocabulary as Triton text, typed by the operands' dtypes.

Values are tiles or scalars in the dtype arithmetic runs in: 16-bit floats are widened when they are loaded
and rounded when they are stored. Knows no axes and no sizes.

Exact, bit for bit, are arithmetic, comparisons, bits, rounding, `sqrt`, remainders, casts of what fits, and
random bits; but of -0.0 and 0.0 `maximum` and `minimum` may give the other one than NumPy. The rest is
libdevice's, with the errors below. Where a function's result is a subnormal float32, it may be 0.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import replace

from kernels import dtypes
from kernels.blocks import BlockSpec
from kernels.dtypes import DType
from kernels.gpu import helpers
from kernels.spec import LoopSpec, MatmulSpec

# Largest errors in ulp, for float32 and float64, as CUDA's programming guide has them for these functions;
# rsqrt's is against 1 / sqrt rounded twice.
ULP_BOUNDS: dict[str, tuple[float, float]] = {
    "rsqrt": (3, 2),
    "exp": (2, 1),
    "expm1": (1, 1),
    "log": (1, 1),
    "log1p": (1, 1),
    "sin": (2, 2),
    "cos": (2, 2),
    "tanh": (2, 2),
    "erf": (2, 2),
    "sigmoid": (4, 2),
    "pow": (8, 2),
}
_NAME = {"bool": "int1", "bfloat16": "bfloat16"}
_POINTER = {
    "bool": "i1", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
}  # fmt: skip
_OPERATORS = {
    "sub": "-", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and_": "&", "or_": "|", "xor": "^",
}  # fmt: skip
_LIBDEVICE = frozenset("rsqrt exp expm1 log log1p sin cos tanh erf".split())
# Of bools, which Triton would add and multiply modulo 2.
_OF_BOOLS = {"add": "|", "mul": "&", "maximum": "|", "minimum": "&"}


def pointer(dtype: DType) -> str:
    """Triton's name of the type of a parameter that points to elements of `dtype`."""
    return f"*{_POINTER[dtype.name]}"


def triton(dtype: DType) -> str:
    """The text of a dtype as it is in memory: "tl.float16"."""
    return f"tl.{_NAME.get(dtype.name, dtype.name)}"


def register(dtype: DType) -> str:
    """The text of the dtype of values of `dtype`: "tl.float32" for 16-bit floats."""
    return triton(dtype.arithmetic)


def number(value: float, dtype: DType) -> str:
    """The text of a Python number, as near as `dtype` has it."""
    if not dtype.is_floating_point:
        return repr(bool(value) if dtype is dtypes.bool_ else int(value))
    value = float(dtype.numpy.type(value)) if dtype.compute else float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def literal(value: float, dtype: DType, shape: str = "()") -> str:
    """A number as a scalar of `dtype`, or a tile of it."""
    return f"tl.full({shape}, {number(value, dtype)}, {register(dtype)})"


def load(address: str, dtype: DType, mask: str = "") -> str:
    """The value at an address; undefined outside the mask."""
    loaded = f"tl.load({address}, {mask})" if mask else f"tl.load({address})"
    return f"{loaded}.to({register(dtype)})" if dtype.compute else loaded


def store(address: str, value: str, dtype: DType, mask: str = "") -> str:
    """The statement that stores a value of `dtype`, rounded where that is a 16-bit float."""
    stored = f"{value}.to({triton(dtype)})" if dtype.compute else value
    return f"tl.store({address}, {stored}, {mask})" if mask else f"tl.store({address}, {stored})"


def call(function: str, inputs: Sequence[str], operands: Sequence[DType], result: DType) -> str:
    """The expression of a word on named values of dtypes `operands`."""
    dtype = operands[-1].arithmetic
    floating, bits = dtype.is_floating_point, 8 * dtype.itemsize
    x, y = inputs[0], inputs[-1]
    signed = "integer" if dtype.is_signed else "unsigned"
    if dtype is dtypes.bool_ and function in _OF_BOOLS:
        return f"{x} {_OF_BOOLS[function]} {y}"
    match function:
        case "cast":
            return cast(x, operands[0], result)
        case "where":
            return f"tl.where({', '.join(inputs)})"
        case "add":
            return f"{x} + {y}"
        case "mul":
            return f"{x} * {y}"
        case "neg":
            return f"-{x}"
        case "invert":
            return f"~{x}"
        case "abs":
            return f"tl.abs({x})"
        case "maximum" | "minimum":
            return f"tl.{function}({x}, {y}{', propagate_nan=tl.PropagateNan.ALL' if floating else ''})"
        case "div":
            return f"tl.div_rn({x}, {y})" if dtype is dtypes.float32 else f"{x} / {y}"
        case "sqrt":
            return f"tl.sqrt_rn({x})" if dtype is dtypes.float32 else f"tl.sqrt({x})"
        case "sigmoid":
            return f"1.0 / (1.0 + libdevice.exp(-{x}))"
        case "floor" | "ceil" | "trunc" | "round":
            rounding = {"floor": "tl.floor", "ceil": "tl.ceil", "round": "libdevice.rint"}
            return f"{rounding.get(function, 'libdevice.trunc')}({x})" if floating else x
        case "floor_div" | "remainder":
            return f"{'float' if floating else signed}_{function}({x}, {y})"
        case "fmod":
            same = floating or dtype.is_signed
            name = ("libdevice." if floating else "integer_") if same else "unsigned_"
            return f"{name}{'fmod' if same else 'remainder'}({x}, {y})"
        case "pow":
            return (
                f"libdevice.pow({x}, {y})" if floating else f"integer_pow({x}, {y}, {bits - dtype.is_signed})"
            )
        case "shift_left" | "shift_right":
            kind = "" if function == "shift_left" or dtype.is_signed else "unsigned_"
            return f"{kind}{function}({x}, {y}, {bits})"
        case "random_bits":
            return f"random_bits({', '.join(inputs)})"
    if function in _LIBDEVICE:
        return f"libdevice.{function}({x})"
    return f"{x} {_OPERATORS[function]} {y}"


def cast(x: str, source: DType, target: DType) -> str:
    """The expression of a conversion.

    Floats beyond int64, and NaN, give what the device gives: the nearest integer there is, and 0, where x86
    gives the least one.
    """
    if source is target:
        return x
    if source.is_floating_point and target.category == dtypes.INTEGER and target is not dtypes.int32:
        # Through int64, as C does for narrow and unsigned targets: -1.0 to uint8 is 255.
        return f"{x}.to(tl.int64)" + ("" if target is dtypes.int64 else f".to({triton(target)})")
    if target.compute is None:
        return f"{x}.to({triton(target)})"
    wide = "" if source.arithmetic is dtypes.float32 else ".to(tl.float32)"
    return f"{x}{wide}.to({triton(target)}).to(tl.float32)"


def combine(combination: str, dtype: DType) -> str:
    """The name of the helper that combines two values: "add", "mul", "max" or "min"."""
    if dtype is dtypes.bool_:
        combination = {"add": "or", "max": "or", "mul": "and", "min": "and"}[combination]
    return f"combine_{combination}"


def reduced(value: str, axis: int | None, combination: str, dtype: DType) -> str:
    """A tile combined along one of its axes, which stays with one element; or along all, to a scalar."""
    where = f"{axis}, " if axis is not None else "None, "
    keep = "" if axis is None else ", keep_dims=True"
    if combination == "add" and dtype.itemsize >= 4:
        return f"tl.sum({value}{f', {axis}' if axis is not None else ''}{keep})"
    return f"tl.reduce({value}, {where}{combine(combination, dtype)}{keep})"


def scanned(value: str, axis: int, combination: str, dtype: DType) -> str:
    """A tile in which each element is combined with all before it along an axis."""
    return f"tl.associative_scan({value}, {axis}, {combine(combination, dtype)})"


def module(spec: LoopSpec | MatmulSpec | BlockSpec, kernel: str) -> str:
    """A source: the spec as a comment, the helpers that the kernel's text calls, and the kernel."""
    comment = [f"#   {line}" for line in str(replace(spec, name="kernel")).splitlines()]
    imports = ["import triton.language as tl"]
    texts = [*_helpers(kernel), kernel]
    if any("libdevice." in text for text in texts):
        imports.append("from triton.language.extra import libdevice")
    return "\n\n\n".join(["\n".join([*imports, "", *comment]), *texts])


def _helpers(text: str) -> list[str]:
    """The helpers that a text names, and those that they name, before what names them."""
    found: dict[str, None] = {}

    def visit(text: str) -> None:
        for name, body in _HELPERS.items():
            if re.search(rf"\b{name}\b", text) and name not in found:
                visit(body.partition("(")[2])
                found[name] = None

    visit(text)
    return [_HELPERS[name] for name in found]


_HELPERS = {
    name: inspect.getsource(f).rstrip() for name, f in inspect.getmembers(helpers, inspect.isfunction)
}
