"""Benchmarks of kernels: `python -m kernels.bench`, or `measure` and `compare` from Python.

Imports nothing of the compiler or the framework.
"""

from kernels.bench.measuring import compare as compare
from kernels.bench.measuring import measure as measure
from kernels.bench.measuring import prepare as prepare
from kernels.bench.result import Measurement as Measurement
