"""Whole training steps and call overheads, timed beside other frameworks. Nothing here is imported by the packages."""
