"""The words of a generated kernel: explicit vectors, with masked raw loads and stores.

Every function here is a word that emits a few LLVM instructions; names are the scalar vocabulary's. A value
is a vector of `lanes()` elements; a 16-bit float is held as float32, rounded to its storage type after every
operation. Addresses are int64, offsets and strides count elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from kernels import dtypes
from kernels.cpu.target import lanes
from kernels.cpu.words import word
from kernels.dtypes import DType

LANES = lanes()
I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
LLVM: dict[str, ir.Type] = {
    "bool": I1,
    "uint8": I8,
    "int8": I8,
    "int16": ir.IntType(16),
    "int32": I32,
    "int64": I64,
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
}
# How elements lie in memory where that differs from the register form.
MEMORY: dict[str, ir.Type] = {"bool": I8, "float16": ir.IntType(16), "bfloat16": ir.IntType(16)}


class Vector(types.Type):
    """The Numba type of a vector of one dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


VECTOR = {name: Vector(name) for name in LLVM}
VECTOR |= {"float16": VECTOR["float32"], "bfloat16": VECTOR["float32"]}  # held wide
MASK = VECTOR["bool"]
EXPORTS: dict[str, Any] = {}


def _export(name: str, function: Any) -> None:
    EXPORTS[name] = globals()[name] = function


def _splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    kind = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    )


def _vector_constant(kind: ir.Type, values: list[Any] | Any) -> ir.Constant:
    values = values if isinstance(values, list) else [values] * LANES
    return ir.Constant(ir.VectorType(kind, LANES), values)


def declare(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """The function `name` of the module being built, declared on first use."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


# Integers: the table, and index arithmetic


@word
def entry(typing: Any, table: Any, index: Any) -> Any:
    """The 64-bit entry `index` of the table at address `table`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(builder.inttoptr(args[0], I64.as_pointer()), [args[1]]))

    return types.int64(types.int64, types.int64), emit


def fetch_line(builder: ir.IRBuilder, place: Any, write: int = 0) -> None:
    """Fetch the cache line that a pointer leads to, which need not exist, to be read or written soon."""
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    # Locality 3: into the nearest cache; last argument 1: data, not instructions.
    arguments = [ir.Constant(I32, n) for n in (write, 3, 1)]
    builder.call(function, [builder.bitcast(place, I8.as_pointer()), *arguments])


def _prefetch(write: int) -> Any:
    """A word that fetches the cache line at an address, which need not exist, to be read or written soon."""

    def fetch(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            fetch_line(builder, builder.inttoptr(args[0], I8.as_pointer()), write)
            return context.get_dummy_value()

        return types.void(types.int64), emit

    return word(fetch)


prefetch, prefetch_for_write = _prefetch(write=0), _prefetch(write=1)


@word
def quotient(typing: Any, x: Any, y: Any) -> Any:
    """x // y for non-negative x and positive y, without Python's sign and zero checks."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.udiv(*args)

    return types.int64(types.int64, types.int64), emit


@word
def mask(typing: Any, count: Any) -> Any:
    """The mask of the first `count` lanes."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        lane = _vector_constant(I32, list(range(LANES)))
        # Clamp before narrowing, so that 2**32 + 1 lanes left is not one.
        wide = ir.Constant(I64, LANES)
        count = builder.select(builder.icmp_signed("<", args[0], wide), args[0], wide)
        return builder.icmp_signed("<", lane, _splat(builder, builder.trunc(count, I32)))

    return MASK(types.int64), emit


@word
def lane(typing: Any, vector: Any) -> Any:
    """The first of int64 lanes, as a number."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], ir.Constant(I32, 0))

    return types.int64(VECTOR["int64"]), emit


@word
def steps(typing: Any, start: Any, stride: Any) -> Any:
    """start, start + stride, start + 2 * stride, … as int64 lanes."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        lane = _vector_constant(I64, list(range(LANES)))
        return builder.add(_splat(builder, args[0]), builder.mul(lane, _splat(builder, args[1])))

    return VECTOR["int64"](types.int64, types.int64), emit


# Memory


def to_register(builder: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    """Memory form to register form, for a scalar or a vector of any width."""
    vector = isinstance(value.type, ir.VectorType)
    width = value.type.count if vector else 1

    def shaped(kind: ir.Type) -> ir.Type:
        return ir.VectorType(kind, width) if vector else kind

    if name == "bool":
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, [0] * width if vector else 0))
    if name == "float16":
        return builder.fpext(builder.bitcast(value, shaped(ir.HalfType())), shaped(ir.FloatType()))
    if name == "bfloat16":
        shift = ir.Constant(shaped(I32), [16] * width if vector else 16)
        return builder.bitcast(builder.shl(builder.zext(value, shaped(I32)), shift), shaped(ir.FloatType()))
    return value


def _to_memory(builder: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    """Register form to memory form, for a vector."""
    if name == "bool":
        return builder.zext(value, ir.VectorType(I8, LANES))
    if name == "float16":
        return builder.bitcast(
            builder.fptrunc(value, ir.VectorType(ir.HalfType(), LANES)), ir.VectorType(MEMORY[name], LANES)
        )
    if name == "bfloat16":
        return _bfloat16_bits(builder, value)
    return value


def _bfloat16_bits(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round float32 lanes to bfloat16, to nearest even; NaN stays a NaN."""
    bits = builder.bitcast(value, ir.VectorType(I32, LANES))
    odd = builder.and_(builder.lshr(bits, _vector_constant(I32, 16)), _vector_constant(I32, 1))
    rounded = builder.add(bits, builder.add(odd, _vector_constant(I32, 0x7FFF)))
    quiet = builder.or_(bits, _vector_constant(I32, 0x400000))
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(
        builder.lshr(chosen, _vector_constant(I32, 16)), ir.VectorType(MEMORY["bfloat16"], LANES)
    )


def _pointer(builder: ir.IRBuilder, name: str, base: ir.Value, offset: ir.Value) -> ir.Value:
    kind = MEMORY.get(name, LLVM.get(name))
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [offset])


def _suffix(kind: ir.Type) -> str:
    if isinstance(kind, ir.IntType):
        return f"v{LANES}i{kind.width}"
    return f"v{LANES}f{64 if isinstance(kind, ir.DoubleType) else 32}"


def _memory_functions(name: str) -> None:
    kind = MEMORY.get(name) or LLVM[name]
    vector, register = ir.VectorType(kind, LANES), VECTOR[name]
    zero = ir.Constant(vector, [0] * LANES if isinstance(kind, ir.IntType) else [0.0] * LANES)
    alignment = ir.Constant(I32, dtypes.named(name).itemsize)
    pointers = ir.VectorType(kind.as_pointer(), LANES)

    def gather(builder: ir.IRBuilder, base: Any, offsets: Any, active: Any) -> Any:
        address = builder.gep(
            _splat(builder, builder.inttoptr(base, kind.as_pointer())), [offsets], source_etype=kind
        )
        function = declare(
            builder,
            f"llvm.masked.gather.{_suffix(kind)}.v{LANES}p0",
            vector,
            [pointers, I32, ir.VectorType(I1, LANES), vector],
        )
        return to_register(builder, name, builder.call(function, [address, alignment, active, zero]))

    @word
    def load(typing: Any, base: Any, offset: Any, active: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            place = builder.bitcast(_pointer(builder, name, args[0], args[1]), vector.as_pointer())
            function = declare(
                builder,
                f"llvm.masked.load.{_suffix(kind)}.p0",
                vector,
                [vector.as_pointer(), I32, ir.VectorType(I1, LANES), vector],
            )
            return to_register(builder, name, builder.call(function, [place, alignment, args[2], zero]))

        return register(types.int64, types.int64, MASK), emit

    @word
    def load_one(typing: Any, base: Any, offset: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return _splat(builder, to_register(builder, name, builder.load(_pointer(builder, name, *args))))

        return register(types.int64, types.int64), emit

    @word
    def gather_at(typing: Any, base: Any, offsets: Any, active: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return gather(builder, *args)

        return register(types.int64, VECTOR["int64"], MASK), emit

    @word
    def store(typing: Any, base: Any, offset: Any, value: Any, active: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            base, offset, value, active = args
            place = builder.bitcast(_pointer(builder, name, base, offset), vector.as_pointer())
            function = declare(
                builder,
                f"llvm.masked.store.{_suffix(kind)}.p0",
                ir.VoidType(),
                [vector, vector.as_pointer(), I32, ir.VectorType(I1, LANES)],
            )
            builder.call(function, [_to_memory(builder, name, value), place, alignment, active])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, register, MASK), emit

    @word
    def store_one(typing: Any, base: Any, offset: Any, value: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            base, offset, value = args
            first = builder.extract_element(_to_memory(builder, name, value), ir.Constant(I32, 0))
            builder.store(first, _pointer(builder, name, base, offset))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, register), emit

    @word
    def scatter_at(typing: Any, base: Any, offsets: Any, value: Any, active: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            base, offsets, value, active = args
            address = builder.gep(
                _splat(builder, builder.inttoptr(base, kind.as_pointer())), [offsets], source_etype=kind
            )
            function = declare(
                builder,
                f"llvm.masked.scatter.{_suffix(kind)}.v{LANES}p0",
                ir.VoidType(),
                [vector, pointers, I32, ir.VectorType(I1, LANES)],
            )
            builder.call(function, [_to_memory(builder, name, value), address, alignment, active])
            return context.get_dummy_value()

        return types.void(types.int64, VECTOR["int64"], register, MASK), emit

    for verb, function in (
        ("load", load), ("load_one", load_one), ("gather", gather_at),
        ("store", store), ("store_one", store_one), ("scatter", scatter_at),
    ):  # fmt: skip
        _export(f"{verb}_{name}", function)


# Numbers


def _conversion(source: DType, target: DType) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """Register form of `source` to register form of `target`."""
    kind = ir.VectorType(LLVM[target.arithmetic.name], LANES)

    def convert(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        if target is dtypes.bool_:
            zero = ir.Constant(value.type, [0.0 if source.is_floating_point else 0] * LANES)
            compare = builder.fcmp_unordered if source.is_floating_point else builder.icmp_unsigned
            return value if source is target else compare("!=", value, zero)
        if source.is_floating_point and target.is_floating_point:
            value = _resized_float(builder, value, kind)
            return rounded(builder, value, target)
        if source.is_floating_point:
            # Through int64, as C does for narrow and unsigned targets: -1.0 to uint8 is 255.
            wide = builder.fptosi(value, ir.VectorType(I64 if target is not dtypes.int32 else I32, LANES))
            return builder.trunc(wide, kind) if wide.type != kind else wide
        if target.is_floating_point:
            make = builder.sitofp if source.is_signed else builder.uitofp
            return rounded(builder, make(value, kind), target)
        if value.type.element.width >= kind.element.width:
            return builder.trunc(value, kind) if value.type != kind else value
        return (builder.sext if source.is_signed else builder.zext)(value, kind)

    return convert


def _resized_float(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    if value.type == kind:
        return value
    return (builder.fpext if isinstance(kind.element, ir.DoubleType) else builder.fptrunc)(value, kind)


def rounded(builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """Round a wide register value to what its 16-bit storage type can hold."""
    if dtype.compute is None:
        return value
    return to_register(builder, dtype.name, _to_memory(builder, dtype.name, value))


def _constant_function(name: str) -> None:
    kind = LLVM[dtypes.named(name).arithmetic.name]

    @word
    def constant(typing: Any, value: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            scalar = args[0]
            if isinstance(kind, ir.FloatType):
                scalar = builder.fptrunc(scalar, kind)
            elif isinstance(kind, ir.IntType) and kind.width < 64:
                scalar = builder.trunc(scalar, kind)
            return _splat(builder, scalar)

        return VECTOR[name](types.float64 if not isinstance(kind, ir.IntType) else types.int64), emit

    _export(f"constant_{name}", constant)


def _cast_functions(source: str, target: str) -> None:
    convert = _conversion(dtypes.named(source), dtypes.named(target))

    @word
    def cast(typing: Any, value: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return convert(builder, args[0])

        return VECTOR[target](VECTOR[source]), emit

    _export(f"cast_{source}_{target}", cast)


for _name in dtypes.DTYPES:
    _memory_functions(_name)
    _constant_function(_name)
for _source in dtypes.DTYPES:
    for _target in dtypes.DTYPES:
        _cast_functions(_source, _target)
EXPORTS |= {
    "entry": entry,
    "lane": lane,
    "prefetch": prefetch,
    "prefetch_for_write": prefetch_for_write,
    "quotient": quotient,
    "mask": mask,
    "steps": steps,
}
