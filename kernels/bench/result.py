"""What one measurement found, and what follows from it; as JSON and back. Measures nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kernels.timing import busy

OURS = "ours"


@dataclass(frozen=True)
class Measurement:
    """One library's time on one kernel, in seconds a run, with the work it had to do in bytes and FLOPs.

    `spread` and `waited` are `Timing`'s. `bound`: the time at the roofline, `bound_by` its reason; `copy`:
    the time of copying as many bytes in memory. The last fields are known of our own kernels only: `moved`
    bytes of loads and stores, `call` seconds of one run called from Python, seconds to compile, bytes of
    code, bits of its vectors.
    """

    kernel: str
    sizes: tuple[int, ...]
    dtype: str
    threads: int
    library: str
    median: float
    best: float
    spread: float
    samples: int
    waited: float
    bytes: int
    flops: int
    bound: float
    bound_by: str
    copy: float
    moved: int | None = None
    call: float | None = None
    compile_seconds: float | None = None
    code_bytes: int | None = None
    vector_bits: int | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes a second, of those that must be moved, at the median."""
        return self.bytes / self.median

    @property
    def speed(self) -> float:
        """FLOPs a second at the median."""
        return self.flops / self.median

    @property
    def roof_share(self) -> float:
        """The share of the roofline that the best run reached: both are the best seen."""
        return self.bound / self.best

    @property
    def copy_share(self) -> float:
        """The best run's bytes a second over those of a copy in memory."""
        return self.copy / self.best

    @property
    def excess(self) -> float | None:
        """Bytes moved over the least possible."""
        return self.moved / self.bytes if self.moved is not None and self.bytes else None

    @property
    def noisy(self) -> bool:
        """Whether the samples lie too far apart, or threads waited for cores: the machine was too busy."""
        return busy(self.spread, self.waited)

    @property
    def shape(self) -> str:
        """The sizes as one word."""
        return "x".join(map(str, self.sizes))

    @property
    def key(self) -> tuple[str, tuple[int, ...], str, int, str]:
        """What two measurements of the same thing share."""
        return self.kernel, self.sizes, self.dtype, self.threads, self.library

    def as_json(self) -> dict[str, Any]:
        """All fields, and what follows from them; `from_json` takes it back."""
        derived = ("bandwidth", "speed", "roof_share", "copy_share", "excess", "noisy")
        return asdict(self) | {"sizes": list(self.sizes)} | {name: getattr(self, name) for name in derived}


def from_json(content: dict[str, Any]) -> Measurement:
    """The measurement that `as_json` gave."""
    fields: dict[str, Any] = {name: content[name] for name in Measurement.__dataclass_fields__}
    fields["sizes"] = tuple(fields["sizes"])
    return Measurement(**fields)
