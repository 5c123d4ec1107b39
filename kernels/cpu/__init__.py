"""The CPU back end: specs become Numba source on explicit vectors, cached as object code."""
