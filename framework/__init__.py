# ruff: noqa: E402, F401, F403, N813 -- names are handed on, after the packages were checked
"""Eager tensors with PyTorch's names, and @compile.

`import framework as fw` is the whole user interface; nothing heavy is loaded until it is used.
"""

from __future__ import annotations

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import compiler as _compiler
import kernels as _kernels


def _folder_above(package: _Any) -> str:
    return _os.path.dirname(_os.path.dirname(_os.path.realpath(package.__file__ or "")))


def _require_siblings() -> None:
    """Raise ImportError when `compiler` or `kernels` is some other package of that name."""
    root = _os.path.dirname(_os.path.dirname(_os.path.realpath(__file__)))
    for package in (_compiler, _kernels):
        if _folder_above(package) != root:
            raise ImportError(
                f"framework needs the package {package.__name__!r} beside it in {root}, but "
                f"{package.__file__} was imported; "
                f"put {root} first in sys.path, or rename or uninstall the other package"
            )


_require_siblings()

from math import e, inf, nan, pi

from framework import autograd, cuda, methods, random
from framework import examples as _examples
from framework.conversion import finfo, iinfo
from framework.creation import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
    arange,
    as_tensor,
    asarray,
    empty,
    empty_like,
    eye,
    from_numpy,
    frombuffer,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    scalar_tensor,
    tensor,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)
from framework.device import device
from framework.examples import methods as _methods
from framework.examples import numbers as _numbers
from framework.examples import shapes as _shapes
from framework.functional import *
from framework.interop import from_dlpack
from framework.printing import get_printoptions, set_printoptions
from framework.promotion import can_cast, promote_types, result_type
from framework.random import (
    Generator,
    bernoulli,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)
from framework.size import Size
from framework.state import (
    enable_grad,
    get_default_dtype,
    get_float32_matmul_precision,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_default_dtype,
    set_float32_matmul_precision,
    set_grad_enabled,
)
from framework.tensor import Tensor
from kernels.dtypes import DType as dtype
from kernels.dtypes import bfloat16, float16, float32, float64, int8, int16, int32, int64, uint8
from kernels.dtypes import bool_ as bool

float = float32
double = float64
half = float16
short = int16
int = int32
long = int64
newaxis = None
# Layouts and memory formats that exist; every tensor has them.
strided = "strided"
contiguous_format = "contiguous_format"
preserve_format = "preserve_format"

if _TYPE_CHECKING:
    from framework import cache, nn, optim, profiler, serialization, utils
    from framework.capture.compile import CompileError, compile
    from framework.configuration import get_num_threads, set_num_threads, show_config
    from framework.finite import NonFiniteError
    from framework.profiler import profile
    from framework.serialization import load, save
    from framework.settings import config

# Names that load on first use, with the module they are in; the module itself where that is the name's.
_LAZY = {
    "cache": "framework.cache",
    "nn": "framework.nn",
    "optim": "framework.optim",
    "profile": "framework.profiler",
    "profiler": "framework.profiler",
    "serialization": "framework.serialization",
    "utils": "framework.utils",
    "CompileError": "framework.capture.compile",
    "NonFiniteError": "framework.finite",
    "compile": "framework.capture.compile",
    "config": "framework.settings",
    "get_num_threads": "framework.configuration",
    "load": "framework.serialization",
    "save": "framework.serialization",
    "set_num_threads": "framework.configuration",
    "show_config": "framework.configuration",
}


def __getattr__(name: str) -> _Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'framework' has no attribute {name!r}")
    found = _import_module(module)
    if module != f"framework.{name}":
        found = getattr(found, name)
    globals()[name] = found
    return found


_examples.attach(globals(), _numbers.TABLE)
_examples.attach(globals(), _shapes.TABLE)
_examples.attach(Tensor, _methods.TABLE)

if _os.environ.get("TRACEFUSE_CHECK_FINITE"):
    _import_module("framework.settings")


# Modules that a user has a use for; the others are how the package is built.
_MODULES = ("autograd", "cache", "cuda", "nn", "optim", "profiler", "random", "serialization", "utils")


def __dir__() -> list[str]:
    names = {name for name in {*globals(), *_LAZY} if not name.startswith("_") or name.startswith("__")}
    hidden = {name for name in names if isinstance(globals().get(name), type(_os))}
    return sorted(names - hidden - {"annotations"} | {*_MODULES})
