"""The sizes of a sweep, per family of kernels."""

from __future__ import annotations

from kernels.library import ELEMENTWISE, MATMUL, ROWS, Named, Sizes

# Elements of every point of a sweep over row lengths, nearly.
_ELEMENTS = 16_000_000
SWEEPS: dict[str, tuple[Sizes, ...]] = {
    ELEMENTWISE: tuple((10**power,) for power in range(4, 9)),
    ROWS: tuple((_ELEMENTS // columns, columns) for columns in (64, 256, 1024, 4096, 16384, 65536)),
    # m, k, n: few rows, squares, layers of a network.
    MATMUL: (
        (1, 64, 64), (1, 512, 512), (1, 2048, 2048), (4, 512, 512), (16, 512, 512), (64, 64, 64),
        (64, 784, 512), (128, 128, 128), (128, 784, 512), (256, 256, 256), (256, 2048, 2048),
        (512, 512, 512), (1024, 1024, 1024), (2048, 256, 2048), (2048, 2048, 2048),
    ),
}  # fmt: skip
_BATCHED: tuple[Sizes, ...] = ((8, 32, 32, 32), (64, 64, 64, 64), (96, 128, 64, 128), (48, 256, 64, 256))


def sweep(named: Named) -> tuple[Sizes, ...]:
    """The sizes that a kernel is swept over."""
    return _BATCHED if len(named.default) == 4 else SWEEPS[named.family]
