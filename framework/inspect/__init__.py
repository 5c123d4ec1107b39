"""Seeing inside compiled functions: comparison with eager code, shrunk failures, reports.

What a compiled function offers as methods is made here; nothing here is on the way of a call.
"""
