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

from framework.access import over
from framework.device import device, number_of, place_of
from framework.interop import parts, rebuild
from framework.size import Size
from framework.tensor import Tensor, concrete
from kernels import dtypes
from kernels.gpu import arrays

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

    def __init__(self, array: Any) -> None:
        self.array = array


Location = str | device | Callable[..., Any] | dict[str, str] | None


def _located(array: np.ndarray[Any, Any], saved: str, location: Location) -> Any:
    """Loaded memory on the device it goes to; `saved` is the one it was on."""
    if callable(location):
        found = location(over(array), saved)
        if found is not None:
            return concrete(found)
        location = None
    target = location.get(saved, saved) if isinstance(location, dict) else location or saved
    try:
        number = number_of(target)
    except RuntimeError as error:
        if location is not None:
            raise
        raise RuntimeError(
            f"Attempting to deserialize object on device {saved!r}, which is not available: {error}. Load it "
            "with map_location='cpu' to have it on the CPU"
        ) from None
    return array if number is None else arrays.put(array, number)


class _Pickler(pickle.Pickler):
    def __init__(self, stream: IO[bytes], protocol: int) -> None:
        super().__init__(stream, protocol)
        self.names: dict[tuple[int, int, int | None], str] = {}
        self.arrays: list[Any] = []

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
        number = arrays.number_of(array)
        key = (arrays.address(array), array.nbytes, number)
        if key not in self.names:
            self.names[key] = str(len(self.arrays))
            self.arrays.append(array)
        where = () if number is None else (str(place_of(number)),)
        return self.names[key], dtypes.of_numpy(array.dtype).name, array.size, *where


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, stream: IO[bytes], archive: zipfile.ZipFile, weights_only: bool, location: Location
    ) -> None:
        super().__init__(stream)
        self.location = location
        self.archive = archive
        self.weights_only = weights_only
        self.loaded: dict[str, Any] = {}

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
        name, dtype, size, *where = pid
        if name not in self.loaded:
            raw = bytearray(self.archive.read(f"data/{name}"))
            array = np.frombuffer(raw, dtypes.named(dtype).numpy)
            if array.size != size:
                raise pickle.UnpicklingError(
                    f"memory {name} holds {array.size} elements, not {size}: the file is damaged"
                )
            self.loaded[name] = _located(array, where[0] if where else "cpu", self.location)
        return self.loaded[name]


def save(obj: Any, f: str | Path | IO[bytes], pickle_protocol: int = 4) -> None:
    """Write tensors and containers of them to a path or a binary file.

    Example::

        >>> import io
        >>> file = io.BytesIO()
        >>> fw.save({"w": fw.ones(2)}, file)
        >>> start = file.seek(0)
        >>> fw.load(file)
        {'w': tensor([1., 1.])}
    """
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
            archive.writestr(f"data/{i}", np.ascontiguousarray(arrays.get(array)).view(np.uint8).data)


def load(
    f: str | Path | IO[bytes],
    map_location: Location = None,
    *,
    weights_only: bool = True,
) -> Any:
    """What `save` wrote. Raises UnpicklingError for types beyond tensors and containers, unless
    `weights_only` is False. Memory goes to the device it was on, or to what `map_location` says.

    Example::

        >>> import io
        >>> file = io.BytesIO()
        >>> fw.save([fw.ones(2)], file)
        >>> start = file.seek(0)
        >>> fw.load(file)
        [tensor([1., 1.])]
    """
    if isinstance(map_location, str | device):
        number_of(map_location)
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
            return _Unpickler(io.BytesIO(body.read()), archive, weights_only, map_location).load()
