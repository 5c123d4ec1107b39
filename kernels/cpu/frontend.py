"""Python functions to LLVM: Numba reads the bytecode and infers types; each call of a word then emits itself.

Numba's own CPU target would first load all of NumPy's functions (0.6 s), then wrap each function for Python
and let it raise (60 to 750 ms a kernel); here it becomes a plain C function of 64-bit integers.
"""

from __future__ import annotations

from collections import Counter
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba.core import bytecode, errors, typeinfer, types
from numba.core import ir as numba
from numba.core.errors import LoweringError, NumbaWarning, TypingError
from numba.core.interpreter import Interpreter
from numba.core.target_extension import CPU
from numba.core.typing.context import BaseContext

from kernels.cpu.builtins import BUILTINS, INTEGER, LLVM, REAL, TRUTH
from kernels.cpu.words import Word

_CONSTANTS: dict[type, types.Type] = {int: INTEGER, float: REAL, bool: TRUTH, type(None): types.none}


class _Context(BaseContext):
    """Numba's typing context, of words, Python's operators on integers, and the functions of a module."""

    def __init__(self, functions: dict[FunctionType, Word]) -> None:
        super().__init__()
        self.functions = functions

    def resolve_value_type(self, val: Any) -> types.Type:
        if isinstance(val, Word):
            return val
        found = _CONSTANTS.get(type(val)) or BUILTINS.get(val) or self.functions.get(val)
        if found is None:
            raise TypingError(f"a kernel cannot use {val!r}, only words, numbers and functions of its module")
        return found

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        return self.resolve_value_type(func).get_call_type(self, args, kws)  # type: ignore[attr-defined]


class _Inference(typeinfer.TypeInferer):
    """Gives constants plain types: Numba's literal ones take 3 ms each."""

    def typeof_const(self, inst: Any, target: Any, const: Any) -> None:
        self.add_type(target.name, self.resolve_value_type(inst, const), loc=inst.loc)

    def typeof_global(self, inst: Any, target: Any, gvar: Any) -> None:
        if gvar.value is numba.UNDEFINED:
            raise TypingError(f"the name {gvar.name} is not defined", loc=inst.loc)
        self.lock_type(target.name, self.resolve_value_type(inst, gvar.value), loc=inst.loc)


class Module:
    """An LLVM module to which functions of 64-bit integers are added, those called before their callers."""

    def __init__(self, name: str) -> None:
        self.ir = ir.Module(name)
        self.functions: dict[FunctionType, Word] = {}
        self.context = _Context(self.functions)

    def add(self, function: FunctionType, returns: bool, symbol: str | None = None) -> None:
        """Add `function`, returning an integer or nothing; without a `symbol` it is inlined in its callers.

        Raises a NumbaError at what has no compiled form.
        """
        identity = bytecode.FunctionIdentity.from_function(function)
        code = Interpreter(identity).interpret(bytecode.ByteCode(identity))
        arguments, result = (INTEGER,) * code.arg_count, INTEGER if returns else types.void
        typemap, calltypes = self._infer(code, identity, arguments, result)
        kind = ir.FunctionType(LLVM[INTEGER] if returns else ir.VoidType(), [LLVM[INTEGER]] * code.arg_count)
        made = ir.Function(self.ir, kind, symbol or function.__name__)
        if symbol is None:
            made.linkage = "internal"
            made.attributes.add("alwaysinline")
        _Lowering(code, typemap, calltypes, made).run()

        def call(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return builder.call(made, args)

        self.functions[function] = Word(function.__name__, lambda typing, *given: (result(*arguments), call))

    def _infer(self, code: Any, identity: Any, arguments: Any, result: types.Type) -> tuple[Any, Any]:
        warnings = errors.WarningsFixer(NumbaWarning)  # pyright: ignore[reportAttributeAccessIssue]
        inference = _Inference(self.context, code, warnings)
        with self.context.callstack.register(CPU, inference, identity, arguments), warnings:
            for index, name in enumerate(code.arg_names):
                inference.seed_argument(name, index, INTEGER)
            inference.seed_return(result)
            inference.build_constraint()
            inference.propagate()
            typemap, _, calltypes = inference.unify()
        return typemap, calltypes


class _Lowering:
    """One function's typed Numba IR to LLVM: a variable assigned once is a value, any other a stack slot."""

    def __init__(self, code: Any, typemap: Any, calltypes: Any, function: ir.Function) -> None:
        self.blocks = dict(sorted(code.blocks.items()))
        self.types, self.calltypes, self.function = typemap, calltypes, function
        statements = [s for block in self.blocks.values() for s in block.body if isinstance(s, numba.Assign)]
        count = Counter(s.target.name for s in statements)
        self.changing = {name for name, times in count.items() if times > 1}
        self.values: dict[str, Any] = {}
        self.places: dict[str, Any] = {}

    def run(self) -> None:
        """Emit every block."""
        builder = self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        labels = self.labels = {n: self.function.append_basic_block(f"block{n}") for n in self.blocks}
        builder.branch(next(iter(labels.values())))
        for number, block in self.blocks.items():
            builder.position_at_end(labels[number])
            for statement in block.body:
                self.statement(statement)

    def statement(self, statement: Any) -> None:
        builder = self.builder
        match statement:
            case numba.Assign():
                self.assign(statement.target.name, self.value(statement.value))
            case numba.Jump():
                builder.branch(self.labels[statement.target])
            case numba.Branch():
                targets = self.labels[statement.truebr], self.labels[statement.falsebr]
                builder.cbranch(self.read(statement.cond), *targets)
            case numba.Return() if isinstance(self.function.function_type.return_type, ir.VoidType):
                builder.ret_void()
            case numba.Return():
                builder.ret(self.read(statement.value))
            case numba.Del() | numba.PopBlock():
                pass
            case _:
                raise LoweringError(f"a kernel cannot have the statement {statement}", loc=statement.loc)

    def assign(self, name: str, value: Any) -> None:
        if name not in self.changing:
            self.values[name] = value
            return
        if name not in self.places:
            with self.builder.goto_entry_block():
                self.places[name] = self.builder.alloca(value.type, name=name)
        self.builder.store(value, self.places[name])

    def read(self, variable: Any) -> Any:
        name = variable.name
        return self.builder.load(self.places[name]) if name in self.changing else self.values[name]

    def value(self, source: Any) -> Any:
        match source:
            case numba.Const() | numba.Global() | numba.FreeVar():
                kind = LLVM.get(_CONSTANTS.get(type(source.value)))  # type: ignore[arg-type]
                return ir.Constant(kind, source.value) if kind else None
            case numba.Arg():
                return self.function.args[source.index]
            case numba.Var():
                return self.read(source)
            case numba.Expr():
                return self.expression(source)
        raise LoweringError(f"a kernel cannot have the value {source}", loc=source.loc)

    def expression(self, source: Any) -> Any:
        match source.op:
            case "call":
                return self.call(self.types[source.func.name], source, source.args)
            case "binop" | "inplace_binop":
                return self.call(BUILTINS[source.fn], source, (source.lhs, source.rhs))
            case "unary":
                return self.call(BUILTINS[source.fn], source, (source.value,))
            case "getiter" | "iternext":
                return self.call(BUILTINS[source.op], source, (source.value,))
            case "pair_first":
                return self.read(source.value)[0]
            case "pair_second":
                return self.read(source.value)[1]
            case "cast":
                return self.read(source.value)
        raise LoweringError(f"a kernel cannot have the expression {source}", loc=source.loc)

    def call(self, word: Any, source: Any, arguments: Any) -> Any:
        return word.emit(self.calltypes[source], self.builder, [self.read(x) for x in arguments])
