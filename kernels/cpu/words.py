"""How a kernel's source calls LLVM: a `word` is a function of it whose call becomes a few instructions.

Numba's own intrinsics are written the same way, but each of their calls takes 1 ms to resolve; a word looks
its signature up by the types of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing.templates import Signature

# (context, builder, signature, LLVM arguments) -> LLVM value, as in Numba.
Emit = Callable[..., Any]
# (None, *argument types) -> a signature and how to emit it, or None when the types do not fit.
Define = Callable[..., Any]


class Word(types.Callable, types.Opaque):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A word, which is its own Numba type.

    Raises TypingError for arguments that are not exactly of its signature's types.
    """

    def __init__(self, name: str, define: Define) -> None:
        self.word, self.define = name, define
        self.known: dict[tuple[types.Type, ...], tuple[Signature, Emit]] = {}
        super().__init__(name=f"word {name} {id(define)}")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Signature:
        """The signature of a call with arguments of types `args`."""
        args = tuple(args)
        if args not in self.known:
            made = self.define(None, *args)
            if kws or made is None or made[0].args != args:
                raise TypingError(f"{self.word} does not take ({', '.join(str(a) for a in args)})")
            self.known[args] = made
        return self.known[args][0]

    def emit(self, signature: Signature, builder: Any, arguments: Any) -> Any:
        """Emit a call that was given `signature`."""
        return self.known[signature.args][1](self, builder, signature, arguments)

    def get_dummy_value(self) -> None:
        """What a word of no value emits."""
        return None

    def get_call_signatures(self) -> tuple[list[Signature], bool]:
        """Signatures met so far, and that there may be others."""
        return [signature for signature, _ in self.known.values()], True

    def get_impl_key(self, sig: Signature) -> Word:
        """What Numba would file implementations under."""
        return self


def word(define: Define) -> Any:
    """Make a `Word` of a function as `numba.extending.intrinsic` takes it."""
    return Word(define.__name__, define)
