"""Words of the program runner: atomic words, a spin pause, and calls through addresses.

All addresses are int64; every atomic is sequentially consistent. Knows nothing of kernels' contents.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import types

from kernels.cpu.intrinsics import declare
from kernels.cpu.words import word

I32, I64 = ir.IntType(32), ir.IntType(64)
ORDER = "seq_cst"
_X86 = platform.machine() in ("x86_64", "AMD64")


def _word(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, I64.as_pointer())


@word
def atomic_load(typing: Any, address: Any) -> Any:
    """The word at `address`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, args[0]), ORDER, 8)

    return types.int64(types.int64), emit


@word
def atomic_store(typing: Any, address: Any, value: Any) -> Any:
    """Set the word at `address`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _word(builder, args[0]), ORDER, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@word
def atomic_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the word at `address`; the old value."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], ORDER)

    return types.int64(types.int64, types.int64), emit


@word
def compare_swap(typing: Any, address: Any, old: Any, new: Any) -> Any:
    """Replace `old` by `new` at `address`; whether it was `old`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], ORDER, ORDER)
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@word
def pause(typing: Any) -> Any:
    """Tell the core that this is a spin loop."""
    name, arguments = ("llvm.x86.sse2.pause", []) if _X86 else ("llvm.aarch64.hint", [ir.Constant(I32, 1)])

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        builder.call(declare(builder, name, ir.VoidType(), [a.type for a in arguments]), arguments)
        return context.get_dummy_value()

    return types.void(), emit


@word
def read(typing: Any, address: Any, index: Any) -> Any:
    """Word `index` of the array of words at `address`, as plain memory."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(_word(builder, args[0]), [args[1]]))

    return types.int64(types.int64, types.int64), emit


@word
def write(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Set word `index` of the array of words at `address`, as plain memory."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        builder.store(args[2], builder.gep(_word(builder, args[0]), [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@word
def read_byte(typing: Any, address: Any) -> Any:
    """The byte at `address`, as int64."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        byte = builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, I64)

    return types.int64(types.int64), emit


@word
def call_kernel(typing: Any, kernel: Any, table: Any, start: Any, stop: Any, part: Any, scratch: Any) -> Any:
    """Call the kernel at an address."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 5)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 6), emit


@word
def call_pthread(typing: Any, function: Any, first: Any, second: Any) -> Any:
    """Call a pthread function of one or two pointer arguments at an address; its error code."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I32, [I64, I64])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:]), I64)

    return types.int64(types.int64, types.int64, types.int64), emit
