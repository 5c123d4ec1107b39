"""Tools around training."""

from framework.utils import data

__all__ = ["data"]
