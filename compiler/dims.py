"""Symbolic sizes: integers that are recorded as expressions, so that one recording stands for every value.

A `Dim` is a polynomial over symbols, quotients, remainders and extrema, in canonical form, with the value it
has in the call that is recorded (its hint). What the form decides is decided for every value; every other
question, and every use as a plain int, is answered from the hint and noted in the `Scope` as a condition.
Knows nothing of tensors.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from compiler.errors import TraceError

_serial = itertools.count()
_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
ATOMS: dict[str, Callable[[int, int], int]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}


class Atom:
    """A symbol, or an operation on sizes that is no polynomial. One object for each within a scope.

    `low` and `high` bound every value it can have; None where nothing is known.
    """

    __slots__ = ("high", "hint", "kind", "low", "operands", "serial", "text")

    def __init__(
        self, kind: str, operands: tuple[Any, ...], hint: int, low: int | None, high: int | None, text: str
    ) -> None:
        self.kind, self.operands, self.hint, self.low, self.high = kind, operands, hint, low, high
        self.text = text
        self.serial = next(_serial)


class Condition:
    """What a recording relies on: `holds(values)` for an assignment of symbols, and the words for it.

    `about` names two things of which it only says whether they share memory.
    """

    __slots__ = ("about", "holds", "words")

    def __init__(self, holds: Callable[[Values], bool], words: str) -> None:
        self.holds = holds
        self.words = words
        self.about: tuple[Any, Any] | None = None


class Scope:
    """The symbols of one recording, and the conditions under which it stands for other values."""

    def __init__(self) -> None:
        self.atoms: dict[Any, Atom] = {}
        self.conditions: dict[Any, Condition] = {}
        # Differences that a condition says are zero, and symbols that one says have their hint.
        self.zero: set[Any] = set()
        self.pinned: set[Atom] = set()
        self.closed = False

    def symbol(self, name: str, hint: int, low: int | None = 0) -> Dim:
        """A new symbol; `low` bounds what it may stand for."""
        atom = self.atoms[name] = Atom("symbol", (), hint, low, None, name)
        return Dim({(atom,): 1}, self)

    def close(self) -> None:
        """End the recording: a size that is asked something from now on has outlived it."""
        self.closed = True

    def require(self, key: Any, asked: Any, holds: Callable[[Values], bool], words: str) -> Condition | None:
        """Note a condition on what is `asked`, once for each key; nothing where its symbols are pinned."""
        if self.closed:
            raise TraceError("a size of a call that was recorded earlier is used: return it from that call")
        if self.pinned and symbols_of(asked) <= self.pinned:
            return None
        return self.conditions.setdefault(key, Condition(holds, words))

    def atom(self, kind: str, a: Any, b: Any) -> Dim:
        """`kind` of two sizes, as a size."""
        key = (kind, key_of(a), key_of(b))
        made = self.atoms.get(key)
        if made is None:
            low, high = _atom_bounds(kind, a, b)
            text = (
                f"{kind}({_text(a)}, {_text(b)})" if kind.isalpha() else f"({_factor(a)} {kind} {_factor(b)})"
            )
            made = self.atoms[key] = Atom(kind, (a, b), ATOMS[kind](_hint(a), _hint(b)), low, high, text)
        return Dim({(made,): 1}, self)


class Values:
    """An assignment of numbers to symbols, by name; `of` gives what anything made of sizes then is."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols
        self.known: dict[int, Any] = {}
        # Identities are keys: what they name must live as long.
        self.kept: list[Any] = []

    def of(self, x: Any) -> Any:
        """`x` with every size in it replaced; `x` itself where there is none."""
        kind = type(x)
        if kind is Dim or kind is Real:
            value = self.known.get(id(x))
            if value is None:
                value = self.known[id(x)] = self._sum(x) if kind is Dim else x.value(self)
                self.kept.append(x)
            return value
        if isinstance(x, tuple):
            new = [self.of(item) for item in x]
            if all(a is b for a, b in zip(new, x, strict=True)):
                return x
            return tuple(new) if kind is tuple else kind(*new) if hasattr(x, "_fields") else kind(new)
        if kind is list:
            return [self.of(item) for item in x]
        if isinstance(x, dict):
            new_items = {key: self.of(item) for key, item in x.items()}
            return x if all(new_items[key] is item for key, item in x.items()) else new_items
        return x

    def _sum(self, x: Dim) -> int:
        total = 0
        for atoms, factor in x.terms.items():
            for atom in atoms:
                factor *= self._atom(atom)
            total += factor
        return total

    def _atom(self, atom: Atom) -> int:
        if atom.kind == "symbol":
            return self.symbols[atom.text]
        value = self.known.get(id(atom))
        if value is None:
            a, b = atom.operands
            value = self.known[id(atom)] = ATOMS[atom.kind](self.of(a), self.of(b))
            self.kept.append(atom)
        return value


def _fixing(compute: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator and its reflection that take a size for a plain number."""
    return lambda self, other: compute(self.fixed(), other), lambda self, other: compute(other, self.fixed())


def _computing(
    sign: str, compute: Callable[[Any, Any], Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator and its reflection that give a fractional size."""
    return (
        lambda self, other: _real(sign, compute, self, other),
        lambda self, other: _real(sign, compute, other, self),
    )


class _Symbolic:
    """What whole and fractional sizes share: every question answered from the hint becomes a condition."""

    __slots__ = ("hint", "scope")
    hint: Any
    scope: Scope

    def text(self) -> str:
        """The expression, for conditions in words; asks nothing."""
        raise NotImplementedError

    def fixed(self) -> Any:
        """The hint, which the recording from here on relies on."""
        me = self
        self.scope.require(
            ("fixed", key_of(self)),
            self,
            lambda values: values.of(me) == me.hint,
            f"{self.text()} == {self.hint}",
        )
        if type(me) is Dim and len(me.terms) == 1 and len(symbols_of(me)) == 1:
            self.scope.pinned |= symbols_of(me)
        return self.hint

    def _ask(self, relation: str, other: Any) -> bool:
        """The answer of the hint, which becomes a condition."""
        compare, me = _RELATIONS[relation], self
        answer = compare(self.hint, _hint(other))
        if relation in ("==", "!=") and answer == (relation == "==") and type(self) is Dim:
            self.scope.zero |= {key_of(self - other), key_of(other - self)}
        self.scope.require(
            (relation, key_of(self), key_of(other)),
            (self, other),
            lambda values: compare(values.of(me), values.of(other)) == answer,
            f"{self.text()} {relation if answer else _OPPOSITES[relation]} {_text(other)}",
        )
        return answer

    def _decide(self, relation: str, other: Any) -> Any:
        return self._ask(relation, other) if type(other) in _NUMBERS else NotImplemented

    def __eq__(self, other: object) -> Any:
        return self is other or self._decide("==", other)

    def __ne__(self, other: object) -> Any:
        return self is not other and self._decide("!=", other)

    def __lt__(self, other: Any) -> Any:
        return self._decide("<", other)

    def __le__(self, other: Any) -> Any:
        return self._decide("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._decide(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._decide(">=", other)

    def __index__(self) -> int:
        return self.fixed().__index__()

    def __int__(self) -> int:
        return int(self.fixed())

    def __float__(self) -> float:
        return float(self.fixed())

    def __hash__(self) -> int:
        return hash(self.fixed())

    def __repr__(self) -> str:
        return repr(self.fixed())

    def __str__(self) -> str:
        return str(self.fixed())

    def __format__(self, spec: str) -> str:
        return format(self.fixed(), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self.hint), (self.fixed(),)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TraceError("a size that varies is made an array: convert it with int()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.fixed(), name)

    def __round__(self, *digits: Any) -> Any:
        return round(self.fixed(), *digits)

    __truediv__, __rtruediv__ = _computing("/", operator.truediv)

    def __pow__(self, other: Any) -> Any:
        return _real("**", operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        if type(other) not in _NUMBERS:
            return NotImplemented
        return other ** self.fixed()


class Dim(_Symbolic):
    """A size that varies between calls. Behaves as an int in every respect but identity of its type."""

    __slots__ = ("terms",)

    def __init__(self, terms: dict[tuple[Atom, ...], int], scope: Scope) -> None:
        self.terms = terms
        self.scope = scope
        hint = 0
        for atoms, factor in terms.items():
            for atom in atoms:
                factor *= atom.hint
            hint += factor
        self.hint = hint

    # What tells numbers from other things takes its way for numbers; `type()` tells the difference.
    __class__ = property(lambda self: int)  # type: ignore[assignment]

    def text(self) -> str:
        parts = []
        for atoms, factor in self.terms.items():
            names = [atom.text for atom in atoms]
            parts.append("*".join([*([str(factor)] if factor != 1 or not names else []), *names]))
        return " + ".join(parts).replace("+ -", "- ")

    # Arithmetic

    def __add__(self, other: Any) -> Any:
        return _added(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _added(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        return _added(-self, other, 1)

    def __neg__(self) -> Any:
        return _made({atoms: -factor for atoms, factor in self.terms.items()}, self.scope)

    def __mul__(self, other: Any) -> Any:
        terms = _terms(other, self.scope)
        if terms is None:
            return _real("*", operator.mul, self, other)
        product: dict[tuple[Atom, ...], int] = {}
        for (a, x), (b, y) in itertools.product(self.terms.items(), terms.items()):
            atoms = tuple(sorted((*a, *b), key=_by_serial))
            product[atoms] = product.get(atoms, 0) + x * y
        return _made(product, self.scope)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _divided(self, other)[0]

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided(other, self)[0]

    def __mod__(self, other: Any) -> Any:
        return _divided(self, other)[1]

    def __rmod__(self, other: Any) -> Any:
        return _divided(other, self)[1]

    def __divmod__(self, other: Any) -> Any:
        return _divided(self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return _divided(other, self)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __pow__(self, other: Any) -> Any:
        if type(other) is not int or not 0 <= other <= 4:
            return _real("**", operator.pow, self, other)
        power: Any = 1
        for _ in range(other):
            power = self * power
        return power

    # Questions

    def _decide(self, relation: str, other: Any) -> Any:
        if _terms(other, self.scope) is None:
            return self._ask(relation, other) if type(other) in _NUMBERS else NotImplemented
        difference = self - other
        if type(difference) is int:
            return _RELATIONS[relation](difference, 0)
        low, high = difference.bounds()
        if low is not None and low >= 0 and relation in ("<", ">="):
            return relation == ">="
        if high is not None and high <= 0 and relation in (">", "<="):
            return relation == "<="
        if (low is not None and low > 0) or (high is not None and high < 0):
            return _RELATIONS[relation](1 if low is not None and low > 0 else -1, 0)
        return self._ask(relation, other)

    def bounds(self) -> tuple[int | None, int | None]:
        """The least and the greatest value any assignment can give; None where there is no bound."""
        low: int | None = 0
        high: int | None = 0
        for atoms, factor in self.terms.items():
            least, most = _product_bounds(atoms)
            if factor < 0:
                least, most = most, least
            low = None if low is None or least is None else low + factor * least
            high = None if high is None or most is None else high + factor * most
        return low, high

    def __bool__(self) -> bool:
        return self != 0

    # Bits: nobody computes sizes with them.
    __and__, __rand__ = _fixing(operator.and_)
    __or__, __ror__ = _fixing(operator.or_)
    __xor__, __rxor__ = _fixing(operator.xor)
    __lshift__, __rlshift__ = _fixing(operator.lshift)
    __rshift__, __rrshift__ = _fixing(operator.rshift)

    def __invert__(self) -> int:
        return ~self.fixed()


class Real(_Symbolic):
    """A floating number computed from sizes, as `1 / n`: varies in tensor arithmetic, a plain float
    elsewhere."""

    __slots__ = ("compute", "operands", "sign")

    def __init__(
        self, sign: str, compute: Callable[[Any, Any], Any], operands: tuple[Any, Any], scope: Scope
    ):
        self.sign, self.compute, self.operands, self.scope = sign, compute, operands, scope
        self.hint = compute(_hint(operands[0]), _hint(operands[1]))

    __class__ = property(lambda self: float)  # type: ignore[assignment]

    def value(self, values: Values) -> Any:
        """The number under an assignment."""
        return self.compute(values.of(self.operands[0]), values.of(self.operands[1]))

    def text(self) -> str:
        return f"({_text(self.operands[0])} {self.sign} {_text(self.operands[1])})"

    __add__, __radd__ = _computing("+", operator.add)
    __sub__, __rsub__ = _computing("-", operator.sub)
    __mul__, __rmul__ = _computing("*", operator.mul)

    def __neg__(self) -> Any:
        return _real("*", operator.mul, -1.0, self)

    __floordiv__, __rfloordiv__ = _fixing(operator.floordiv)
    __mod__, __rmod__ = _fixing(operator.mod)

    def __bool__(self) -> bool:
        return self != 0.0


_NUMBERS = (int, bool, float, Dim, Real)


def is_symbolic(x: Any) -> bool:
    """Whether a number varies between the calls of one recording."""
    kind = type(x)
    return kind is Dim or kind is Real


def symbols_of(x: Any) -> set[Atom]:
    """Every symbol that `x` depends on."""
    if type(x) is Dim:
        atoms = {atom for term in x.terms for atom in term}
        return {a for a in atoms if not a.operands}.union(*(symbols_of(a.operands) for a in atoms))
    if type(x) is Real:
        return symbols_of(x.operands)
    items = x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else ()
    return set().union(*map(symbols_of, items))


def _hint(x: Any) -> Any:
    return x.hint if is_symbolic(x) else x


def _text(x: Any) -> str:
    return x.text() if is_symbolic(x) else str(x)


def _factor(x: Any) -> str:
    text = _text(x)
    return f"({text})" if " " in text or "*" in text else text


def key_of(x: Any) -> Any:
    """What is equal for equal expressions, as a key."""
    if type(x) is Dim:
        return frozenset(x.terms.items())
    return ("real", x.text()) if type(x) is Real else x


def _by_serial(atom: Atom) -> int:
    return atom.serial


def _terms(x: Any, scope: Scope) -> dict[tuple[Atom, ...], int] | None:
    """The terms of an int or a size; None for anything else."""
    if type(x) is Dim:
        if x.scope is not scope:
            raise TraceError("a size of a call that was recorded earlier is used: return it from that call")
        return x.terms
    if type(x) is int or type(x) is bool:
        return {(): int(x)} if x else {}
    return None


def _made(terms: dict[tuple[Atom, ...], int], scope: Scope) -> Any:
    terms = {atoms: factor for atoms, factor in terms.items() if factor}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Dim(terms, scope)


def _added(a: Dim, b: Any, sign: int) -> Any:
    terms = _terms(b, a.scope)
    if terms is None:
        return _real("+" if sign > 0 else "-", operator.add if sign > 0 else operator.sub, a, b)
    total = dict(a.terms)
    for atoms, factor in terms.items():
        total[atoms] = total.get(atoms, 0) + sign * factor
    return _made(total, a.scope)


def _divided(a: Any, b: Any) -> tuple[Any, Any]:
    """Floor quotient and remainder; exact where every term is a multiple of the divisor."""
    scope = a.scope if type(a) is Dim else b.scope
    terms, by = _terms(a, scope), _terms(b, scope)
    if terms is None or by is None:
        return divmod(a.fixed() if is_symbolic(a) else a, b.fixed() if is_symbolic(b) else b)
    if type(b) is Dim:
        if b == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        if len(by) == 1:
            ((atoms, factor),) = by.items()
            quotient = _exact_quotient(terms, atoms, factor)
            if quotient is not None:
                return _made(quotient, scope), 0
        return scope.atom("//", a, b), scope.atom("%", a, b)
    if not b:
        raise ZeroDivisionError("integer division or modulo by zero")
    b = int(b)
    whole = {atoms: factor // b for atoms, factor in terms.items()}
    rest = _made({atoms: factor % b for atoms, factor in terms.items()}, scope)
    if type(rest) is int:
        return _made(whole, scope) + rest // b, rest % b
    return _made(whole, scope) + scope.atom("//", rest, b), scope.atom("%", rest, b)


def _exact_quotient(
    terms: dict[tuple[Atom, ...], int], divisor: tuple[Atom, ...], factor: int
) -> dict[tuple[Atom, ...], int] | None:
    quotient = {}
    for atoms, number in terms.items():
        left = list(atoms)
        for atom in divisor:
            if atom not in left:
                return None
            left.remove(atom)
        if number % factor:
            return None
        quotient[tuple(left)] = number // factor
    return quotient


def _real(sign: str, compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if type(a) not in _NUMBERS or type(b) not in _NUMBERS:
        return NotImplemented
    scope = a.scope if is_symbolic(a) else b.scope
    if sign == "/" and is_symbolic(b) and b == 0:
        raise ZeroDivisionError("division by zero")
    made = Real(sign, compute, (a, b), scope)
    # A complex result, or the int of an integer power, is no floating number.
    return made if type(made.hint) is float else made.fixed()


def _product_bounds(atoms: tuple[Atom, ...]) -> tuple[int | None, int | None]:
    """Bounds of a product; known only where no factor can be negative."""
    low: int = 1
    high: int | None = 1
    for atom in atoms:
        if atom.low is None or atom.low < 0:
            return None, None
        low *= atom.low
        high = None if high is None or atom.high is None else high * atom.high
    return low, high


def _positive(low: int | None) -> bool:
    return low is not None and low >= 0


def _bounds(x: Any) -> tuple[int | None, int | None]:
    return x.bounds() if type(x) is Dim else (x, x)


def _atom_bounds(kind: str, a: Any, b: Any) -> tuple[int | None, int | None]:
    (low, high), (other_low, other_high) = _bounds(a), _bounds(b)
    if kind == "//":
        # A divisor is never 0: that was asked before.
        return (0 if _positive(low) and _positive(other_low) else None), None
    if kind == "%":
        return (0, None if type(b) is Dim else b - 1) if _positive(other_low) else (None, None)
    if kind == "max":
        lows = [n for n in (low, other_low) if n is not None]
        return max(lows, default=None), None if high is None or other_high is None else max(high, other_high)
    highs = [n for n in (high, other_high) if n is not None]
    return None if low is None or other_low is None else min(low, other_low), min(highs, default=None)
