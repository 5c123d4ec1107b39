"""The CPU back end: specs become Numba source on explicit vectors, compiled once and cached as object code.
"""
