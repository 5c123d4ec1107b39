"""Whole training steps and call overheads, timed beside other frameworks. The packages import none of it."""
