"""The disk cache: bytes and generated sources as real files, named by content.

Knows nothing of what it keeps. Writers replace whole files, so that processes may share a folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
