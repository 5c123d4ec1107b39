"""What this machine's CPU is to generated code: vector lanes and a fingerprint for caches.

Loads llvmlite on first use; knows nothing of kernels.
"""

from __future__ import annotations

from functools import cache


@cache
def features() -> frozenset[str]:
    """Instruction-set features of the host, as LLVM names them."""
    import llvmlite.binding as llvm

    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


@cache
def lanes() -> int:
    """Elements in one vector of a generated kernel, whatever their type: LLVM splits what is wider than a
    register.
    """
    return 16 if "avx512f" in features() else 8


@cache
def fingerprint() -> str:
    """Everything about the host that decides machine code, as one string."""
    import llvmlite
    import llvmlite.binding as llvm

    return f"{llvmlite.__version__} {llvm.get_host_cpu_name()} {lanes()} {' '.join(sorted(features()))}"
