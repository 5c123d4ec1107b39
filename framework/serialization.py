"""save and load: a zip of one pickle and the raw memory of its tensors, views of one memory stored once.

`load` builds only tensors and plain containers unless told otherwise, so a file cannot run code.
"""

from __future__ import annotations

import collections
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from framework.device import device, require_cpu
from framework.interop import parts, rebuild
from framework.size import Size
from framework.tensor import Tensor
from kernels import dtypes

FORMAT = {"format": "framework", "version": 1}

_SAFE: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "deque"): collections.deque,
    ("collections", "Counter"): collections.Counter,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "slice"): slice,
    ("builtins", "range"): range,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("kernels.dtypes", "named"): dtypes.named,
    ("framework.interop", "rebuild"): rebuild,
    ("framework.tensor", "Tensor"): Tensor,
    ("framework.size", "Size"): Size,
    ("framework.device", "device"): device,
}


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Let `load(weights_only=True)` also build these classes or functions."""
    for item in safe_globals:
        _SAFE[item.__module__, item.__qualname__] = item


def get_safe_globals() -> list[Any]:
    """What `load(weights_only=True)` builds."""
    return list(_SAFE.values())


class _Memory:
    """Stands in a pickle for the flat memory of tensors."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


class _Pickler(pickle.Pickler):
    def __init__(self, stream: IO[bytes], protocol: int) -> None:
        super().__init__(stream, protocol)
        self.names: dict[tuple[int, int], str] = {}
        self.arrays: list[np.ndarray[Any, Any]] = []

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        if obj.grad_fn is not None:
            raise RuntimeError("a tensor with history cannot be saved; detach() it first")
        kind, memory, *rest = parts(obj)
        state = {k: v for k, v in obj.__dict__.items() if not k.startswith("_")}
        made = rebuild, (kind, _Memory(memory), *rest)
        return (*made, state) if state else made

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Memory):
            return None
        array = obj.array
        key = (array.ctypes.data, array.nbytes)
        if key not in self.names:
            self.names[key] = str(len(self.arrays))
            self.arrays.append(array)
        return self.names[key], dtypes.of_numpy(array.dtype).name, array.size


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: IO[bytes], archive: zipfile.ZipFile, weights_only: bool) -> None:
        super().__init__(stream)
        self.archive = archive
        self.weights_only = weights_only
        self.loaded: dict[str, np.ndarray[Any, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = _SAFE.get((module, name))
        if found is None and module.startswith("framework.") and name == "Parameter":
            found = super().find_class(module, name)
        if found is None and not self.weights_only:
            found = super().find_class(module, name)
        if found is None:
            raise pickle.UnpicklingError(
                f"Weights only load failed: {module}.{name} is not among the types a file may build; if you "
                "trust the file, "
                "use load(..., weights_only=False), or allow it with serialization.add_safe_globals"
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        name, dtype, size = pid
        if name not in self.loaded:
            raw = bytearray(self.archive.read(f"data/{name}"))
            array = np.frombuffer(raw, dtypes.named(dtype).numpy)
            if array.size != size:
                raise pickle.UnpicklingError(
                    f"memory {name} holds {array.size} elements, not {size}: the file is damaged"
                )
            self.loaded[name] = array
        return self.loaded[name]


def save(obj: Any, f: str | Path | IO[bytes], pickle_protocol: int = 4) -> None:
    """Write tensors and containers of them to a path or a binary file."""
    if isinstance(f, str | Path):
        with open(f, "wb") as stream:
            save(obj, stream, pickle_protocol)
        return
    body = io.BytesIO()
    pickler = _Pickler(body, pickle_protocol)
    pickler.dump(obj)
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("format.json", json.dumps(FORMAT))
        archive.writestr("data.pkl", body.getvalue())
        for i, array in enumerate(pickler.arrays):
            archive.writestr(f"data/{i}", np.ascontiguousarray(array).view(np.uint8).data)


def load(
    f: str | Path | IO[bytes],
    map_location: str | device | Callable[..., Any] | dict[str, str] | None = None,
    *,
    weights_only: bool = True,
) -> Any:
    """What `save` wrote. Raises UnpicklingError for types beyond tensors and containers, unless
    `weights_only` is False."""
    if isinstance(map_location, str | device):
        require_cpu(map_location)
    if isinstance(f, str | Path):
        with open(f, "rb") as stream:
            return load(stream, map_location, weights_only=weights_only)
    try:
        archive = zipfile.ZipFile(f)
    except zipfile.BadZipFile:
        raise pickle.UnpicklingError("not a file written by framework.save: it is no zip archive") from None
    with archive:
        if "data.pkl" not in archive.namelist() or "format.json" not in archive.namelist():
            raise pickle.UnpicklingError(
                "not a file written by framework.save: data.pkl or format.json is missing"
            )
        with archive.open("data.pkl") as body:
            return _Unpickler(io.BytesIO(body.read()), archive, weights_only).load()
