"""The disk cache: bytes and generated sources as real files, named by content.

Knows nothing of what it keeps. Writers replace whole files, so that processes may share a folder.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Files are named after what they are and a digest: nothing else in the folder is ours.
_NAME = re.compile(r"[a-z_]+_[0-9a-f]{12,}(\.[a-z]+)?")


def folder() -> Path:
    """Where compiled kernels are kept: `$TRACEFUSE_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TRACEFUSE_CACHE")
    base = (
        Path(chosen)
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tracefuse"
    )
    base.mkdir(parents=True, exist_ok=True)
    return base


def read(name: str) -> bytes | None:
    """The content of cache file `name`; None when there is none."""
    try:
        return (folder() / name).read_bytes()
    except FileNotFoundError:
        return None


def write(name: str, content: bytes) -> Path:
    """Put `content` into cache file `name`, at once or not at all."""
    target = folder() / name
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, target)
    return target


def files() -> Iterator[os.DirEntry[str]]:
    """The files of the cache; those that a user has edited are in a folder of their own, not among them."""
    with os.scandir(folder()) as entries:
        yield from (e for e in entries if _NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False))


def size() -> int:
    """Bytes in the cache."""
    return sum(entry.stat().st_size for entry in files())


def clear() -> int:
    """Remove every file of the cache, and say how many there were. Programs in memory go on working."""
    count = 0
    for entry in list(files()):
        Path(entry.path).unlink(missing_ok=True)  # another process may have removed it
        count += 1
    return count
