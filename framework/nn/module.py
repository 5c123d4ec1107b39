"""Module: a tree of layers that owns parameters and buffers.

Knows registration, traversal, hooks and conversion; the values in a state dict are moved by `nn.state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from framework.html import module as module_html
from framework.nn.backward_hooks import call_with_backward_hooks
from framework.nn.hooks import ForwardHook, ForwardPreHook, HookTable, RemovableHandle
from framework.nn.parameter import Parameter
from framework.nn.state_dict import IncompatibleKeys, load, save
from framework.nn.utils import clear_gradients
from framework.state import ambient, no_grad, python_effect, structure_changed
from framework.tensor import Tensor
from kernels import dtypes
from kernels.dtypes import DType


class Module:
    """Base of all layers and models, as `torch.nn.Module`: set parameters, buffers and sub-modules as
    attributes.
    """

    training: bool

    # Attributes that a recorded program reads anew at each replay: a change is no other program.
    runtime_numbers: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        values = self.__dict__
        values["training"] = True
        values["_parameters"] = {}
        values["_buffers"] = {}
        values["_transient_buffers"] = set()
        values["_modules"] = {}
        values["_forward_pre_hooks"] = HookTable()
        values["_forward_hooks"] = HookTable()
        values["_backward_pre_hooks"] = HookTable()
        values["_backward_hooks"] = HookTable()

    # Calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes; every subclass defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function: define '
            "forward(self, ...) in it"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = ambient.tracer
        if tracer is not None:
            tracer.touch(self)
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return self._call_with_hooks(args, kwargs)
        return self.forward(*args, **kwargs)

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook in list(self._forward_pre_hooks.values()):
            args, kwargs = hook(self, args, kwargs)
        if self._backward_hooks or self._backward_pre_hooks:
            result = call_with_backward_hooks(self, args, kwargs)
        else:
            result = self.forward(*args, **kwargs)
        for hook in list(self._forward_hooks.values()):
            changed = hook(self, args, kwargs, result)
            result = result if changed is None else changed
        return result

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before `forward`; a result that is not None replaces the arguments.

        With `with_kwargs`, `hook(module, args, kwargs)` returns None or (args, kwargs).
        """
        return self._forward_pre_hooks.register(ForwardPreHook(hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after `forward`; a result that is not None replaces the output.

        With `with_kwargs` the hook is given `(module, args, kwargs, output)`.
        """
        return self._forward_hooks.register(ForwardHook(hook, with_kwargs), prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, grad_output)` before the module's gradients; a result replaces `grad_output`."""
        return self._backward_pre_hooks.register(hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` once both are known; a result replaces
        `grad_input`.
        """
        return self._backward_hooks.register(hook, prepend)

    # Attributes

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that are no ordinary attribute.
        tracer = ambient.tracer
        if tracer is not None:
            tracer.touch(self)
        values = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            if table in values and name in values[table]:
                return values[table][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @python_effect
    def __setattr__(self, name: str, value: Any) -> None:
        structure_changed()
        values = self.__dict__
        if isinstance(value, Parameter):
            self._require_init(name, "parameter")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._require_init(name, "module")
            self._forget(name, "_modules")
            values["_modules"][name] = value
        elif "_parameters" not in values:
            object.__setattr__(self, name, value)
        elif name in values["_parameters"]:
            self._replace("_parameters", name, value, "parameter", Parameter)
        elif name in values["_modules"]:
            self._replace("_modules", name, value, "child module", Module)
        elif name in values["_buffers"]:
            self._replace("_buffers", name, value, "buffer", Tensor)
        else:
            object.__setattr__(self, name, value)

    def _require_init(self, name: str, kind: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"cannot assign {kind} {name!r} before Module.__init__() call: start "
                f"{type(self).__name__}.__init__ with super().__init__()"
            )

    def _forget(self, name: str, keep: str) -> None:
        # The table that takes the new value keeps its entry: re-assigning must not change the order.
        values = self.__dict__
        for table in (values, *(values[t] for t in ("_parameters", "_buffers", "_modules") if t != keep)):
            table.pop(name, None)
        self._transient_buffers.discard(name)

    def _replace(self, table: str, name: str, value: Any, kind: str, wanted: type) -> None:
        # A Parameter or Module never comes here: it has taken its own table's place in __setattr__.
        if value is not None and not isinstance(value, wanted):
            raise TypeError(
                f"cannot assign {type(value).__name__!r} object to {kind} {name!r} (nn.{wanted.__name__} or "
                "None required)"
            )
        self.__dict__[table][name] = value

    @python_effect
    def __delattr__(self, name: str) -> None:
        structure_changed()
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._transient_buffers.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *self.__dict__, *self._parameters, *self._buffers, *self._modules}
        return sorted(n for n in names if not n[0].isdigit() and (n[0] != "_" or n.startswith("__")))

    @python_effect
    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None to reserve the name. Raises TypeError, KeyError or ValueError as
        PyTorch.
        """
        self._check_name(name, self._parameters, "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign {type(param).__name__!r} object to parameter {name!r} (nn.Parameter or None "
                "required): wrap the tensor in nn.Parameter"
            )
        if param is not None and param.grad_fn is not None:
            raise ValueError(
                f"cannot assign a non-leaf Tensor to parameter {name!r}: a parameter is a leaf; compute the "
                "derived value in forward()"
            )
        self._parameters[name] = param
        structure_changed()

    @python_effect
    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that moves with the module but takes no gradient; a persistent one is in the state
        dict.
        """
        self._check_name(name, self._buffers, "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign {type(tensor).__name__!r} object to buffer {name!r} (Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._transient_buffers.discard if persistent else self._transient_buffers.add)(name)
        structure_changed()

    @python_effect
    def add_module(self, name: str, module: Module | None) -> None:
        """Add a sub-module, or None to reserve the name."""
        self._check_name(name, self._modules, "module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module
        structure_changed()

    register_module = add_module

    def _check_name(self, name: str, table: Mapping[str, Any], kind: str) -> None:
        self._require_init(name, kind)
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string, got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name!r}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in table:
            raise KeyError(f"attribute {name!r} already exists")

    def get_submodule(self, target: str) -> Module:
        """The sub-module at a dotted path. Raises AttributeError where the path leaves the tree."""
        module: Module = self
        for name in target.split(".") if target else []:
            child = module._modules.get(name)
            if child is None:
                raise AttributeError(
                    f"{type(module).__name__} has no sub-module {name!r} (looking for {target!r})"
                )
            module = child
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises AttributeError when there is none."""
        return self._member("_parameters", target, "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises AttributeError when there is none."""
        return self._member("_buffers", target, "buffer")

    def _member(self, table: str, target: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path).__dict__[table].get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no {kind} {target!r}")
        return found

    # Traversal

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with dotted names, parents first; each object once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, _joined(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their names, each object once."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """Direct sub-modules, each once."""
        return (module for _, module in self.named_children())

    def _named_members(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in owners:
            for name, member in module.__dict__[table].items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield _joined(path, name), member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names, each object once unless `remove_duplicate` is False."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters of this module and, with `recurse`, of all below it."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted names, each object once unless `remove_duplicate` is False."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers of this module and, with `recurse`, of all below it."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module of the tree, children first."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # Mode and gradients

    def train(self, mode: bool = True) -> Self:
        """Set `training` here and below. Raises ValueError when `mode` is not a bool."""
        if not isinstance(mode, bool):
            raise ValueError(f"training mode is expected to be boolean, got {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Turn gradients of all parameters on or off."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every parameter's gradient, or fill it with zeros."""
        clear_gradients(self.parameters(), set_to_none)

    # Conversion

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> Self:
        for module in self.children():
            module._apply(fn)
        with no_grad():
            for p in self._parameters.values():
                if p is not None:
                    _convert(p, fn)
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[name] = fn(buffer)
        structure_changed()
        return self

    def _cast(self, dtype: DType) -> Self:
        return self._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device, cast floating members to a dtype, or match a tensor: `to(device)`, `to(dtype)`,
        `to(other)`.

        Raises TypeError for a dtype that is not floating.
        """
        dtype = kwargs.pop("dtype", None)
        for x in args:
            dtype = x if isinstance(x, DType) else x.dtype if isinstance(x, Tensor) else dtype
        places = tuple(x.device if isinstance(x, Tensor) else x for x in args if not isinstance(x, DType))
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(
                f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}: cast the "
                "tensor itself if you mean one buffer"
            )
        if places or kwargs:
            self._apply(lambda t: t.to(*places, **kwargs))
        return self if dtype is None else self._cast(dtype)

    def type(self, dtype: DType) -> Self:
        """Cast every parameter and buffer to `dtype`."""
        return self._apply(lambda t: t.to(dtype))

    def float(self) -> Self:
        """Cast floating parameters and buffers to float32."""
        return self._cast(dtypes.float32)

    def double(self) -> Self:
        """Cast floating parameters and buffers to float64."""
        return self._cast(dtypes.float64)

    def half(self) -> Self:
        """Cast floating parameters and buffers to float16."""
        return self._cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast floating parameters and buffers to bfloat16."""
        return self._cast(dtypes.bfloat16)

    def cpu(self) -> Self:
        """Move to the CPU."""
        return self._apply(lambda t: t.to("cpu"))

    def cuda(self, device: Any = "cuda") -> Self:
        """Move to a GPU."""
        return self._apply(lambda t: t.to(device))

    # State

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name, detached but sharing memory unless
        `keep_vars`.
        """
        return save(self, {} if destination is None else destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values in by name (or take the tensors themselves with `assign`); all or nothing.

        Raises RuntimeError that lists missing and unexpected names (when `strict`) and every size mismatch.
        """
        return load(self, state_dict, strict, assign)

    # Printing

    def extra_repr(self) -> str:
        """What the printed form shows between the parentheses of this layer."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def _repr_html_(self) -> str:
        return module_html(self)

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [f"({name}): {indented(repr(module))}" for name, module in self._modules.items()]
        if not lines and "\n" not in extra:
            return f"{self._get_name()}({extra})"
        return "\n  ".join([f"{self._get_name()}(", *(extra.split("\n") if extra else []), *lines]) + "\n)"


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def indented(text: str) -> str:
    """The lines after the first moved in, as those of a sub-module are shown."""
    return text.replace("\n", "\n  ")


def _convert(p: Parameter, fn: Callable[[Tensor], Tensor]) -> None:
    grad = p.grad
    p.data = fn(p.data)
    if grad is not None:
        p.grad = fn(grad.detach())
