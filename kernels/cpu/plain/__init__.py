"""Generated kernels as plain Python: the words that their sources are made of, on NumPy vectors.

Bit for bit what the machine code computes, at some microseconds a word. `run.py` runs a kernel's source.
"""
