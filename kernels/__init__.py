"""Machine code for loops over memory: specs, their NumPy meaning, and one back end per device.

Imports nothing of the compiler or the framework; usable alone.
"""
