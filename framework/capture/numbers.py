"""Python floats that a call is given, as numbers a program reads anew: one recording serves every value.

The recorded code computes with a `RuntimeNumber` in a float's place. Arithmetic on it is noted and done again
by Python at each replay; what Python learns about it otherwise becomes a condition of the program. Knows
nothing of which arguments are lifted or of calls.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from compiler.errors import TraceError
from compiler.ir import Value
from compiler.ops.compare import cast
from compiler.ops.op import RuntimeOperand, typed_number
from framework.capture.tracer import Tracer
from framework.state import ambient
from framework.tensor import Tensor
from kernels import dtypes
from kernels.dtypes import FLOATING, DType

# Numbers that may meet a RuntimeNumber without making its value a condition.
PLAIN = (float, int, bool)


class RefusedError(BaseException):
    """A number was used where only a true float gives Python's meaning: record without lifting. Not an
    Exception: user code must not catch it.
    """


class Numbers:
    """The numbers of one recording: where they come from, what is computed from them, what must hold of
    them.

    `fixed` are numbers that stay what they were, by position among the leaves of a call; `steps` run in the
    order the recorded code took them, so that a condition is asked before what it protected is computed.
    """

    def __init__(self, tracer: Tracer, leaves: Sequence[Any], lifted: frozenset[int]) -> None:
        self.tracer = tracer
        self.fixed = [(i, x) for i, x in enumerate(leaves) if type(x) is float and i not in lifted]
        self.given = [(slot, position) for slot, position in enumerate(sorted(lifted))]
        # One value per slot: lifted numbers, constants and results.
        self.values: list[Any] = [leaves[position] for _, position in self.given]
        # (slot of the result, function, slots of operands), or (-1, ...) and what the function must give.
        self.steps: list[tuple[int, Callable[..., Any], tuple[int, ...], Any]] = []
        self.known: set[int] = set()
        self.read: dict[tuple[int, DType], Value] = {}
        self.refusal = ""
        self.closed = False

    def number(self, slot: int) -> RuntimeNumber:
        """What stands for the lifted number in `slot`."""
        return RuntimeNumber(self, slot, self.values[slot])

    def close(self) -> None:
        """End the recording: what is asked of a number from now on would be no condition of the program."""
        if not self.closed:
            self.closed = True
            del self.tracer, self.read

    # Recording

    def refuse(self, reason: str) -> NoReturn:
        """Give up lifting."""
        self.refusal = self.refusal or reason
        raise RefusedError(reason)

    def slot(self, x: Any) -> int:
        """The slot of an operand."""
        if isinstance(x, RuntimeNumber):
            return x._slot
        self.values.append(x)
        return len(self.values) - 1

    def compute(self, function: Callable[..., Any], *operands: Any) -> Any:
        """`function(*operands)` as a number to be computed anew, where that is a float."""
        if any(isinstance(x, Tensor) for x in operands):
            return NotImplemented
        if not self.mine(operands):
            return function(*map(plain, operands))
        result = function(*(x._value if isinstance(x, RuntimeNumber) else x for x in operands))
        if type(result) is not float:
            return function(*map(plain, operands))
        slots = tuple(map(self.slot, operands))
        number = RuntimeNumber(self, self.slot(result), result)
        self.steps.append((number._slot, function, slots, None))
        return number

    def ask(self, function: Callable[..., Any], *operands: Any) -> Any:
        """`function(*operands)`, which a replay needs to be the same."""
        if any(isinstance(x, Tensor) for x in operands):
            return NotImplemented
        if not self.mine(operands):
            return function(*map(plain, operands))
        answer = function(*(x._value if isinstance(x, RuntimeNumber) else x for x in operands))
        self.require(function, tuple(map(self.slot, operands)), answer)
        return answer

    def mine(self, operands: Sequence[Any]) -> bool:
        """Whether all operands are numbers of this recording or Python's own."""
        if self.closed:
            raise TraceError(
                "a number made inside @compile is used after the call: return it from the compiled function"
            )
        return all(type(x) in PLAIN or (type(x) is RuntimeNumber and x._numbers is self) for x in operands)

    def require(self, function: Callable[..., Any], slots: tuple[int, ...], answer: Any) -> None:
        """Make `function` of the slots being `answer` a condition."""
        self.steps.append((-1, function, slots, answer))

    def value(self, number: RuntimeNumber) -> float:
        """The number itself, which a replay needs to be the same."""
        self.mine((number,))
        if number._slot not in self.known:
            self.known.add(number._slot)
            # Unlike ==, tells zeros apart and finds nan the same.
            self.require(repr, (number._slot,), repr(number._value))
        return number._value

    def operand(self, number: RuntimeNumber, dtype: DType) -> Any:
        """The number as an operand of `dtype`, rounded as a Python number is."""
        self.mine((number,))
        if dtype.category != FLOATING or ambient.tracer is not self.tracer:
            return typed_number(self.value(number), dtype)
        # A 16-bit number is rounded once, from float64, before the program reads it.
        narrow = dtype if dtype.itemsize == 2 else dtypes.float64
        source = self.read.get((number._slot, narrow))
        if source is None:
            source = self.tracer.number(self._reader(number._slot, narrow))
            self.read[number._slot, narrow] = source
        return source if dtype is dtypes.float64 else cast.trace(source, dtype=dtype)

    def _reader(self, slot: int, dtype: DType) -> Callable[[], float]:
        if dtype is dtypes.float64:
            return lambda: self.values[slot]
        return lambda: float(typed_number(self.values[slot], dtype))

    # Replaying

    def hold(self, leaves: Sequence[Any]) -> bool:
        """Whether the program stands for the numbers: where Python raises it does, and `load` fails."""
        for position, value in self.fixed:
            if not _is(leaves[position], value):
                return False
        return self._evaluate(self.values.copy(), leaves) is not False

    def load(self, leaves: Sequence[Any]) -> bool:
        """Compute what the program reads; False where Python's arithmetic raises or leaves the floats."""
        return self._evaluate(self.values, leaves) is True

    def _evaluate(self, values: list[Any], leaves: Sequence[Any]) -> bool | None:
        for slot, position in self.given:
            values[slot] = leaves[position]
        try:
            for slot, function, operands, answer in self.steps:
                made = function(*[values[i] for i in operands])
                if slot < 0:
                    if made != answer:
                        return False
                elif type(made) is not float:
                    return None
                else:
                    values[slot] = made
        except ArithmeticError:
            return None
        return True

    def change(self, leaves: Sequence[Any]) -> str | None:
        """What no longer holds of the numbers of a call, in words."""
        for position, value in self.fixed:
            if not _is(leaves[position], value):
                return f"a number argument was {value!r} and is {leaves[position]!r}"
        if self._evaluate(self.values.copy(), leaves) is False:
            return "a number argument decides otherwise than it did"
        return None


def _is(x: float, value: float) -> bool:
    """Whether two floats are the same to Python code: zeros differ by their sign, nan is nan."""
    if x == value:
        return x != 0 or math.copysign(1.0, x) == math.copysign(1.0, value)
    return x != x and value != value


def plain(x: Any) -> Any:
    """A Python number that stands for itself: of a RuntimeNumber the value, which becomes a condition."""
    return x._numbers.value(x) if isinstance(x, RuntimeNumber) else x


class RuntimeNumber(RuntimeOperand):
    """A float of the call being recorded. What is not arithmetic, a comparison or tensor work makes its value
    a condition of the program.
    """

    __slots__ = ("_numbers", "_slot", "_value")
    # NumPy's operators leave the operation to this class.
    __array_ufunc__ = None

    def __init__(self, numbers: Numbers, slot: int, value: float) -> None:
        self._numbers, self._slot, self._value = numbers, slot, value

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return float

    def typed(self, dtype: DType) -> Any:
        return self._numbers.operand(self, dtype)

    def plain(self) -> float:
        return self._numbers.value(self)

    def __bool__(self) -> bool:
        return self._numbers.ask(bool, self)

    def __neg__(self) -> Any:
        return self._numbers.compute(operator.neg, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self._numbers.compute(operator.abs, self)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is None:
            return self._numbers.compute(operator.pow, self, other)
        return pow(plain(self), plain(other), plain(modulus))

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is None:
            return self._numbers.compute(operator.pow, other, self)
        return pow(plain(other), plain(self), plain(modulus))

    def __divmod__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Tensor) else divmod(plain(self), plain(other))

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(plain(other), plain(self))

    def __float__(self) -> float:
        return plain(self)

    def __int__(self) -> int:
        return int(plain(self))

    def __round__(self, digits: Any = None) -> Any:
        return round(plain(self), digits)

    def __trunc__(self) -> int:
        return math.trunc(plain(self))

    def __floor__(self) -> int:
        return math.floor(plain(self))

    def __ceil__(self) -> int:
        return math.ceil(plain(self))

    def __format__(self, form: str) -> str:
        return format(plain(self), form)

    def __str__(self) -> str:
        return str(plain(self))

    def __repr__(self) -> str:
        # Guards of the recording are put into words later.
        return repr(self._value if self._numbers.closed else plain(self))

    def __getattr__(self, name: str) -> Any:
        if not hasattr(float, name):
            raise AttributeError(f"'float' object has no attribute {name!r}")
        return getattr(plain(self), name)

    def __hash__(self) -> int:
        return self._numbers.refuse("a number argument is a key, or in a set or a cache")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        self._numbers.refuse("a number argument is given to NumPy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._numbers.refuse("a number argument is copied or pickled")


def _binary(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def method(self: RuntimeNumber, other: Any) -> Any:
        return self._numbers.compute(function, self, other)

    def reflected(self: RuntimeNumber, other: Any) -> Any:
        return self._numbers.compute(function, other, self)

    return method, reflected


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: RuntimeNumber, other: Any) -> Any:
        return self._numbers.ask(function, self, other)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    _method, _reflected = _binary(getattr(operator, _name))
    setattr(RuntimeNumber, f"__{_name}__", _method)
    setattr(RuntimeNumber, f"__r{_name}__", _reflected)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(RuntimeNumber, f"__{_name}__", _comparison(getattr(operator, _name)))
