"""Anomaly detection under PyTorch's names: NaN in the gradients of eager backward passes.

Knows when to look; what is looked at is finite.py's.
"""

from __future__ import annotations

from framework import lookout
from framework.finite import Finite, wanted_of
from framework.state import python_effect


def _here() -> list[Finite]:
    return [x for x in lookout.lookouts() if isinstance(x, Finite) and not x.forward]


def is_anomaly_enabled() -> bool:
    """Whether this thread looks for NaN in gradients.

    Example::

        >>> fw.autograd.is_anomaly_enabled()
        False
    """
    return bool(_here())


class set_detect_anomaly:  # noqa: N801 -- PyTorch's name
    """Switch `detect_anomaly` on or off for this thread; as a context manager until the end of the block.

    Example::

        >>> with fw.autograd.set_detect_anomaly(True):
        ...     print(fw.autograd.is_anomaly_enabled())
        True
    """

    @python_effect
    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = _here()
        self._set([Finite(wanted_of("nan"), forward=False, raises=check_nan)] if mode else [])

    def _set(self, chosen: list[Finite]) -> None:
        for x in _here():
            lookout.remove(x)
        for x in chosen:
            lookout.add(x)

    def __enter__(self) -> None:
        pass

    @python_effect
    def __exit__(self, *exception: object) -> None:
        self._set(self.before)


class detect_anomaly(set_detect_anomaly):  # noqa: N801
    """Raise NonFiniteError where a backward pass makes a NaN, naming the forward line of the op it is the
    gradient of. `fw.config.check_finite` looks at the forward pass too, at infinities, and into compiled
    programs.

    Example::

        >>> x = fw.tensor([0.0, 1.0], requires_grad=True)
        >>> with fw.autograd.detect_anomaly():
        ...     (x.sqrt() * 0).sum().backward()
        Traceback (most recent call last):
            ...
        compiler.finite.NonFiniteError: Function 'SqrtBackward0' returned nan values in its 0th output.
        ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        # Switched on by the `with` statement, as PyTorch's.
        self.check_nan = check_nan

    def __enter__(self) -> None:
        super().__init__(True, self.check_nan)
