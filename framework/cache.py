"""`fw.cache`: the folder in which compiled kernels and plans are kept between processes.

Example::

    >>> fw.cache.folder().is_dir()
    True
"""

from __future__ import annotations

from pathlib import Path

from framework.state import python_effect
from kernels import cache

__all__ = ["clear", "folder", "size"]


def folder() -> Path:
    """Where compiled kernels are kept: the folder that the environment variable TRACEFUSE_CACHE names, else
    `~/.cache/tracefuse`.

    Example::

        >>> fw.cache.folder().is_dir()
        True
    """
    return cache.folder()


def size() -> int:
    """Bytes in the folder.

    Example::

        >>> fw.cache.size() >= 0
        True
    """
    return cache.size()


@python_effect
def clear() -> int:
    """Remove every compiled kernel and plan from the folder; gives the number of files. Functions compiled
    in this process go on working; later ones are compiled anew.

    Example::

        >>> fw.cache.clear()  # doctest: +SKIP
        128
    """
    return cache.clear()
