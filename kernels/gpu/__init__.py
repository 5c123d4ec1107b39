"""The GPU back end: specs as Triton source, its launches, and their run in Triton's interpreter."""
