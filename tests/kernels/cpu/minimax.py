"""How the coefficients of kernels/cpu/tables.py were found: Lawson's method in high precision.

`python -m tests.kernels.cpu.minimax` prints every fit beside its error; one is checked in test_vector_math.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.prec = 220
Function = Callable[[Any], Any]
TINY = mp.mpf(10) ** -18


def fit(
    target: Function, weight: Function, basis: list[Function], low: Any, high: Any
) -> tuple[list[Any], float]:
    """Coefficients c, and max |weight (target - sum c_k basis_k)| on [low, high], nearly the least there is.

    Least squares on Chebyshev points, each round weighted anew by the errors of the last (Lawson 1961).
    """
    points = _chebyshev_points(low, high, 6 * len(basis) + 9)
    rows = [[b(x) * weight(x) for b in basis] for x in points]
    right = [target(x) * weight(x) for x in points]
    emphasis, best = [1.0] * len(points), None
    for _ in range(25):
        c = _least_squares(rows, right, emphasis)
        errors = [abs(r - mp.fdot(c, row)) for r, row in zip(right, rows, strict=True)]
        level = max(errors)
        if best is None or level < best[1]:
            best = c, level
        emphasis = [w * max(float(e / level), 1e-6) for w, e in zip(emphasis, errors, strict=True)]
        emphasis = [w / sum(emphasis) for w in emphasis]
    assert best is not None, "25 rounds have a best one"
    return best[0], float(best[1])


def polynomial(
    target: Function, weight: Function, terms: int, low: Any, high: Any, dtype: type[Any], keep: int = 4
) -> tuple[tuple[float, ...], float]:
    """`terms` coefficients of `dtype`, the lowest `keep` rounded one at a time, and log2 of the error."""
    low, high, done = mp.mpf(low), mp.mpf(high), []

    def rest(x: Any) -> Any:
        return target(x) - mp.fsum(c * x**k for k, c in enumerate(done))

    while len(done) < terms:
        basis = [lambda x, k=k: x**k for k in range(len(done), terms)]
        coefficients, _ = fit(rest, weight, basis, low, high)
        take = 1 if len(done) < min(keep, terms - 1) else len(coefficients)
        done += [mp.mpf(float(dtype(float(c)))) for c in coefficients[:take]]
    error = max(abs(weight(x) * rest(x)) for x in (low + (high - low) * k / 997 for k in range(998)))
    return tuple(float(c) for c in done), float(mp.log(error, 2))


def rational(
    target: Function, weight: Function, p: int, q: int, low: Any, high: Any
) -> tuple[Any, Any, float]:
    """P of p terms and Q = 1 + q terms with P / Q near `target`: linear fits, each weighted by the last Q."""
    last: list[Any] = []

    def divisor(x: Any) -> Any:
        return 1 + mp.fsum(c * x ** (k + 1) for k, c in enumerate(last))

    basis: list[Function] = [lambda x, k=k: x**k for k in range(p)]
    basis += [lambda x, k=k: -target(x) * x ** (k + 1) for k in range(q)]
    top, error = [], 0.0
    for _ in range(4):
        c, error = fit(target, lambda x: weight(x) / divisor(x), basis, mp.mpf(low), mp.mpf(high))
        top, last = c[:p], c[p:]
    return tuple(map(float, top)), (1.0, *map(float, last)), float(mp.log(error, 2))


def _chebyshev_points(low: Any, high: Any, count: int) -> list[Any]:
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle - half * mp.cos(mp.pi * (k + mp.mpf(1) / 2) / count) for k in range(count)]


def _least_squares(rows: list[list[Any]], right: list[Any], emphasis: list[float]) -> list[Any]:
    n = len(rows[0])
    normal, vector = mp.matrix(n, n), mp.matrix(n, 1)
    for j in range(n):
        for k in range(j + 1):
            terms = (w * row[j] * row[k] for w, row in zip(emphasis, rows, strict=True))
            normal[j, k] = normal[k, j] = mp.fsum(terms)
        vector[j] = mp.fsum(w * row[j] * r for w, row, r in zip(emphasis, rows, right, strict=True))
    return list(mp.lu_solve(normal, vector))


# What is fitted, with the limit where the expression is 0 / 0 -----------------------------------------------


def exp_term(r: Any) -> Any:
    """(e**r - 1 - r) / r**2"""
    return mp.mpf(1) / 2 if abs(r) < TINY else (mp.expm1(r) - r) / r**2


def exp2_term(r: Any) -> Any:
    """(2**r - 1) / r"""
    return mp.log(2) if abs(r) < TINY else (mp.mpf(2) ** r - 1) / r


def log_term(f: Any) -> Any:
    """(log(1 + f) - f + f**2 / 2) / f**3"""
    return mp.mpf(1) / 3 if abs(f) < TINY else (mp.log1p(f) - f + f * f / 2) / f**3


def atanh_term(z: Any) -> Any:
    """(2 atanh(s) - 2 s) / s**3 of z = s**2"""
    s = mp.sqrt(z)
    return mp.mpf(2) / 3 if z < TINY else (2 * mp.atanh(s) - 2 * s) / s**3


def atanh_tail(z: Any) -> Any:
    """(2 atanh(s) - 2 s - 2 s**3 / 3) / s**5 of z = s**2"""
    return mp.mpf(2) / 5 + 2 * z / 7 if z < TINY else (atanh_term(z) - mp.mpf(2) / 3) / z


def log2_term(z: Any) -> Any:
    """2 atanh(s) / (s ln 2) of z = s**2"""
    return 2 / mp.log(2) if z < TINY else 2 * mp.atanh(mp.sqrt(z)) / mp.log(2) / mp.sqrt(z)


def tanh_term(z: Any) -> Any:
    """(tanh(x) - x) / x**3 of z = x**2"""
    x = mp.sqrt(z)
    return -mp.mpf(1) / 3 if z < TINY else (mp.tanh(x) - x) / x**3


def sin_term(z: Any) -> Any:
    """(sin(x) - x) / x**3 of z = x**2"""
    x = mp.sqrt(z)
    return -mp.mpf(1) / 6 if z < TINY else (mp.sin(x) - x) / x**3


def cos_term(z: Any) -> Any:
    """(cos(x) - 1 + x**2 / 2) / x**4 of z = x**2"""
    return mp.mpf(1) / 24 - z / 720 if z < TINY else (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def erf_term(z: Any) -> Any:
    """erf(x) / x - 1 of z = x**2"""
    return 2 / mp.sqrt(mp.pi) - 1 if z < TINY else mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1


def erfc_log2(x: Any) -> Any:
    """log2(erfc(x))"""
    return mp.log(mp.erfc(x), 2)


def erfc_share(x: Any) -> Any:
    """The change of erf(x) by a change of `erfc_log2`."""
    return mp.erfc(x) * mp.log(2)


def one(x: Any) -> Any:
    """The weight 1."""
    return mp.mpf(1)


HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.0001")
QUARTER_PI_SQUARED = (mp.pi / 4 * mp.mpf("1.0002")) ** 2
LARGEST_S_SQUARED = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * mp.mpf("1.00001")) ** 2
MARGIN = mp.mpf("1e-6")


def fits(single: bool) -> dict[str, tuple[Any, ...]]:
    """Arguments of `polynomial` for each table of float32 or float64."""
    edge = mp.mpf("0.5001") if single else mp.mpf("0.50001")
    erf_edge, erf_end = (mp.mpf(0.92), 3.95) if single else (mp.mpf(1), 5.95)
    erfc_terms, erfc_keep = (7, 6) if single else (18, 8)
    log = (log_term, lambda f: f * f + TINY, 8, mp.sqrt(0.5) - 1 - MARGIN, mp.sqrt(2) - 1 + MARGIN)
    dtype = np.float32 if single else np.float64
    return {
        "exp": (exp_term, abs, 5 if single else 10, -HALF_LN2, HALF_LN2, dtype),
        "exp2": (exp2_term, lambda r: abs(r) / mp.mpf(2) ** r, 6 if single else 11, -edge, edge, dtype),
        "log": (*log, dtype) if single else (atanh_term, lambda z: z, 7, 0, LARGEST_S_SQUARED, dtype),
        "sin": (sin_term, lambda z: z, 3 if single else 6, 0, QUARTER_PI_SQUARED, dtype),
        "cos": (cos_term, lambda z: z * z, 3 if single else 6, 0, QUARTER_PI_SQUARED, dtype),
        "erf": (erf_term, one, 6 if single else 12, 0, erf_edge**2, dtype),
        "erfc_log2": (erfc_log2, erfc_share, erfc_terms, erf_edge, erf_end, dtype, erfc_keep),
    }


if __name__ == "__main__":
    for single in (True, False):
        for name, arguments in fits(single).items():
            print("float32" if single else "float64", name, *polynomial(*arguments))
    z_high = mp.mpf(0.625) ** 2
    print("float32 tanh", *polynomial(tanh_term, lambda z: z, 5, 0, z_high, np.float32))
    print("float64 tanh", *rational(tanh_term, lambda z: z, 3, 3, 0, z_high))
    print("pow log2", *polynomial(log2_term, one, 5, 0, LARGEST_S_SQUARED, np.float64))
    exp2 = fits(single=False)["exp2"]
    print("pow exp2", *polynomial(*exp2[:2], 6, *exp2[3:]))
    print("pow tail", *polynomial(atanh_tail, lambda z: z * z, 7, 0, LARGEST_S_SQUARED, np.float64))
