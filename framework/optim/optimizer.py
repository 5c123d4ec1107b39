"""Optimizer: parameter groups, per-parameter state, and the frame of a step.

Knows no update formula. Steps are ordinary tensor code, so a capture records them: numbers that schedulers
change go through `runtime_scalar`, numbers that code branches on through `guarded`.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from compiler.errors import TraceError
from framework.creation import tensor
from framework.nn.utils import clear_gradients
from framework.promotion import convert
from framework.state import (
    ambient,
    concrete,
    enable_grad,
    guarded,
    is_recording,
    no_grad,
    python_effect,
    runtime_scalar,
    structure_changed,
)
from framework.tensor import Tensor, payload, write
from kernels import dtypes

Group = dict[str, Any]
Hook = Callable[..., Any]


class Optimizer:
    """Base of all optimizers, as `torch.optim.Optimizer`.

    `params` are tensors, (name, tensor) pairs, or dicts with "params" and options that override `defaults`. A
    subclass defines `_initialise` and `_update_group`, or a `step` of its own.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got a "
                "Tensor: put it in a list"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._stepped = False
        self._pre_hooks: dict[int, Hook] = {}
        self._post_hooks: dict[int, Hook] = {}
        listed = list(params)
        if not listed:
            raise ValueError("optimizer got an empty parameter list")
        groups = listed if isinstance(listed[0], dict) else [{"params": listed}]
        for group in groups:
            self.add_param_group(group)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in ("state", "param_groups", "defaults"):
            structure_changed()

    # Groups

    @python_effect
    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own; missing options come from `defaults`.

        Raises TypeError or ValueError for what is no leaf tensor, or is already in a group, and then adds
        nothing.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group).__name__}")
        group = {**param_group, **_named(param_group["params"])}
        for p in group["params"]:
            _check_parameter(p)
        for name, default in self.defaults.items():
            group.setdefault(name, default)
        known = {id(p) for other in self.param_groups for p in other["params"]}
        own = {id(p) for p in group["params"]}
        if len(own) < len(group["params"]) or known & own:
            raise ValueError(
                "some parameters appear in more than one parameter group, or twice in one: give each once"
            )
        self.param_groups.append(group)
        structure_changed()

    # Steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop every gradient, or fill it with zeros."""
        for group in self.param_groups:
            clear_gradients(group["params"], set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what `closure`, called first with gradients on,
        returns.
        """
        if ambient.tracer is not None:
            ambient.tracer.touch(self)
        for hook in list(self._pre_hooks.values()):
            hook(self, (closure,) if closure is not None else (), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        tracer = ambient.tracer
        with no_grad():
            if tracer is not None and tracer.drives:
                tracer.optimizer_step(self, self._update)
            else:
                self._update()
        self._stepped = True
        for hook in list(self._post_hooks.values()):
            hook(self, (closure,) if closure is not None else (), {})
        return loss

    def _update(self) -> None:
        for group in self.param_groups:
            self._update_group(group)

    def _update_group(self, group: Group) -> None:
        """Update the parameters of one group, with gradients off."""
        raise NotImplementedError(f"{type(self).__name__} defines neither step() nor _update_group()")

    def _initialise(self, parameter: Tensor, group: Group) -> None:
        """Put the state of a parameter that has none into `self.state[parameter]`."""
        raise NotImplementedError(f"{type(self).__name__} defines neither step() nor _initialise()")

    @python_effect
    def register_step_pre_hook(self, hook: Hook) -> Callable[[], None]:
        """Call `hook(optimizer, args, kwargs)` before each step; returns the function that removes it."""
        return _add_hook(self._pre_hooks, hook)

    @python_effect
    def register_step_post_hook(self, hook: Hook) -> Callable[[], None]:
        """Call `hook(optimizer, args, kwargs)` after each step; returns the function that removes it."""
        return _add_hook(self._post_hooks, hook)

    def _active(self, group: Group) -> list[Tensor]:
        """The parameters of `group` that have a gradient, each with its state made."""
        active = [p for p in group["params"] if p.grad is not None]
        fresh = [p for p in active if not self.state.get(p)]
        if fresh:
            self._create(fresh, group)
        return active

    def _create(self, fresh: list[Tensor], group: Group) -> None:
        def undo() -> None:
            for p in fresh:
                self.state.pop(p, None)

        with concrete(undo):
            for p in fresh:
                self._initialise(p, group)
                if "step" in self.state[p]:
                    self.state[p]["step"] = self.state[fresh[0]]["step"]

    def _advance(self, group: Group) -> list[tuple[Any, list[Tensor]]]:
        """Count one step for each parameter with a gradient; those parameters by their step.

        It is a float, under capture a 0-d float64.
        Parameters whose steps agree share one tensor, so that corrections computed from it are computed once.
        """
        active = self._active(group)
        by_step: dict[int, tuple[Tensor, list[Tensor]]] = {}
        for p in active:
            step = self.state[p]["step"]
            by_step.setdefault(id(step), (step, []))[1].append(p)
        self._part_from(group, active, by_step)
        return [(_counted(step), parameters) for step, parameters in by_step.values()]

    def _part_from(self, group: Group, active: list[Tensor], by_step: dict[int, Any]) -> None:
        """Give parameters that sit this step out a copy of the step they shared."""
        if len(active) == len(group["params"]):
            return
        present = {id(p) for p in active}
        for p in group["params"]:
            state = self.state.get(p)
            if id(p) in present or not state or id(state["step"]) not in by_step:
                continue
            shared = state["step"]
            if is_recording() and ambient.tracer.versions.get(id(shared._storage)):
                raise TraceError(
                    "a parameter misses a second step of its optimizer inside @compile: split the function"
                )
            with concrete(lambda state=state, shared=shared: state.update(step=shared)):
                state["step"] = shared.clone()

    # State

    def state_dict(self) -> dict[str, Any]:
        """`{"state": {index: ...}, "param_groups": [...]}`, parameters by their position, in PyTorch's
        layout.
        """
        number: dict[int, int] = {}
        for group in self.param_groups:
            for p in group["params"]:
                number.setdefault(id(p), len(number))
        groups = [
            {**group, "params": [number[id(p)] for p in group["params"]]} for group in self.param_groups
        ]
        state = {(number[id(p)] if isinstance(p, Tensor) else p): values for p, values in self.state.items()}
        return {"state": state, "param_groups": groups}

    @python_effect
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over state and options from `state_dict`; tensors are copied, floating ones cast to the
        parameter's dtype and moved to its device.

        Raises ValueError, changing nothing, when the groups differ in number or size.
        """
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError(
                f"loaded state dict has a different number of parameter groups: {len(saved)}, but the "
                f"optimizer has {len(self.param_groups)}"
            )
        for i, (old, new) in enumerate(zip(saved, self.param_groups, strict=True)):
            if len(old["params"]) != len(new["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of "
                    f"optimizer's group: group {i} has {len(old['params'])} parameters there and "
                    f"{len(new['params'])} here"
                )
        pairs = zip(saved, self.param_groups, strict=True)
        owner = {
            number: p for old, new in pairs for number, p in zip(old["params"], new["params"], strict=True)
        }
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for key, values in state_dict["state"].items():
            state[owner.get(key, key)] = _fitted(owner.get(key), values)
        groups = [
            {**copy.deepcopy({k: v for k, v in old.items() if k != "params"}), "params": new["params"]}
            for old, new in zip(saved, self.param_groups, strict=True)
        ]
        self.state, self.param_groups = state, groups
        self._share_steps()

    def _share_steps(self) -> None:
        for group in self.param_groups:
            shared: dict[float, Tensor] = {}
            for p in group["params"]:
                step = self.state[p].get("step") if p in self.state else None
                if step is not None:
                    self.state[p]["step"] = shared.setdefault(float(step), step)

    def __repr__(self) -> str:
        lines = []
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return f"{type(self).__name__} (\n" + "\n".join(lines) + "\n)"


def new_step(parameter: Tensor) -> Tensor:
    """The step count of a new parameter, on its device: 0-d float32, as PyTorch stores it."""
    return tensor(0.0, dtype=dtypes.float32, device=parameter.device)


def _counted(step: Tensor) -> Any:
    step.add_(1)
    return step.item() if ambient.tracer is None else step.double()


def scalar_of(group: Group, name: str) -> Any:
    """The option `name` as a number, read anew at each replay under capture."""
    return runtime_scalar(lambda: float(group[name]))


def option_of(group: Group, name: str) -> Callable[[Tensor], Any]:
    """The function that gives the option `name` in the dtype of a parameter."""
    return fitted(scalar_of(group, name))


def fitted(number: Any) -> Callable[[Tensor], Any]:
    """The function that gives `number` in the dtype of a tensor; under capture one cast serves all."""
    if not isinstance(number, Tensor):
        return lambda t: number
    made: dict[Any, Tensor] = {}

    def cast_for(t: Tensor) -> Tensor:
        if t.dtype not in made:
            made[t.dtype] = convert(number, t.dtype)
        return made[t.dtype]

    return cast_for


def store(t: Tensor, new: Tensor) -> None:
    """Overwrite a parameter or its state, of the shape of `new`."""
    write(t, payload(new))


def running_mean(share: Callable[[], float]) -> Callable[[Tensor, Tensor], Tensor]:
    """The function `(mean, value)` that gives `mean` moved by `share()` of the way to `value`.

    As PyTorch's lerp: counted from the nearer end, so that a share of 0 or 1 is exact.
    """
    if guarded(lambda: share() < 0.5):
        weight = fitted(runtime_scalar(share))
        return lambda mean, value: mean + (value - mean) * weight(mean)
    kept = fitted(runtime_scalar(lambda: 1 - share()))
    return lambda mean, value: value - (value - mean) * kept(mean)


def running_square(kept: Callable[[], float]) -> Callable[[Tensor, Tensor], Tensor]:
    """The function `(mean, value)` that gives kept * mean + (1 - kept) * value ** 2."""
    old, new = fitted(runtime_scalar(kept)), fitted(runtime_scalar(lambda: 1 - kept()))
    return lambda mean, value: mean * old(mean) + value * new(mean) * value


def gradient_of(group: Group, decay: bool = True) -> Callable[[Tensor], Tensor]:
    """The function that gives a parameter's gradient, negated to maximise and with weight decay added when
    `decay`.
    """
    negated = guarded(lambda: bool(group["maximize"]))
    weight_decay = (
        option_of(group, "weight_decay") if decay and guarded(lambda: group["weight_decay"] != 0) else None
    )

    def gradient(p: Tensor) -> Tensor:
        g: Any = -p.grad if negated else p.grad  # type: ignore[operator]
        return g if weight_decay is None else g + p * weight_decay(p)

    return gradient


def check_option(name: str, value: Any, low: float = 0.0, high: float | None = None) -> None:
    """Raise ValueError unless low <= value (< high)."""
    if not low <= value or (high is not None and not value < high):
        bound = f"at least {low}" if high is None else f"in [{low}, {high})"
        raise ValueError(f"Invalid {name}: {value}; it must be {bound}")


def _named(params: Any) -> Group:
    """The "params" of a group as a list, with "param_names" when they came as (name, tensor) pairs."""
    if isinstance(params, Tensor):
        return {"params": [params]}
    if isinstance(params, set):
        raise TypeError(
            "optimizer parameters need to be organized in ordered collections, but a set has no order"
        )
    listed = list(params)
    named = [isinstance(p, tuple) for p in listed]
    if not any(named):
        return {"params": listed}
    if not all(named):
        raise TypeError("give all optimizer parameters with names, or none")
    return {"params": [p for _, p in listed], "param_names": [name for name, _ in listed]}


def _check_parameter(p: Any) -> None:
    if not isinstance(p, Tensor):
        raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
    if not p.is_leaf:
        raise ValueError("can't optimize a non-leaf Tensor: give the leaf it was computed from")


def _add_hook(table: dict[int, Hook], hook: Hook) -> Callable[[], None]:
    key = max(table, default=-1) + 1
    table[key] = hook
    structure_changed()

    def remove() -> None:
        if table.pop(key, None) is not None:
            structure_changed()

    return remove


def _fitted(p: Tensor | None, values: Any) -> Any:
    """A copy of one parameter's saved state; "step" keeps its dtype."""
    if not isinstance(values, dict):
        return copy.deepcopy(values)
    return {name: _fitted_value(p, name, value) for name, value in values.items()}


def _fitted_value(p: Tensor | None, name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    copied = value.detach().clone()
    copied = copied if p is None else copied.to(p.device)
    fits = p is None or name == "step" or not p.is_floating_point()
    return copied if fits else copied.to(p.dtype)  # type: ignore[union-attr]
