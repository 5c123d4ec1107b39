"""What was made since a capture began: changing it is no effect that outlives the call.

Asks the garbage collector, and never walks what was there before: that may be millions of objects.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Any

from kernels.memory import freezing

# Captures in progress, in any thread: what they froze stays so until the last ends.
_capturing = 0


class Age:
    """Tells what was made since `begin` from what is older; in doubt a thing is older.

    What exists is frozen, so that `gc.get_objects` lists only what was made since. Objects that the program
    itself had frozen are thawed at the end.
    """

    def __init__(self) -> None:
        self.made: set[int] = set()
        # Generators by the identity of their frame. A frame is not kept: it keeps what its variables hold.
        self.generators: dict[int, weakref.ref[types.GeneratorType[Any, Any, Any]]] = {}

    def begin(self) -> None:
        """What is made from here on is new."""
        global _capturing
        with freezing:
            _capturing += 1
            gc.freeze()

    def end(self) -> None:
        """Let the collector see everything again."""
        global _capturing
        with freezing:
            _capturing -= 1
            if not _capturing:
                gc.freeze()  # what is thawed is old, and not searched at the next allocation
                gc.unfreeze()

    def is_new(self, thing: Any) -> bool:
        """Whether a tracked thing was made since."""
        if id(thing) not in self.made:
            self._look()
        return id(thing) in self.made

    def is_new_generator(self, frame: types.FrameType) -> bool:
        """Whether the generator that `frame` belongs to was made since."""
        if not self._is_known(frame):
            self._look()
        return self._is_known(frame)

    def _is_known(self, frame: types.FrameType) -> bool:
        reference = self.generators.get(id(frame))
        generator = None if reference is None else reference()
        return generator is not None and generator.gi_frame is frame

    def _look(self) -> None:
        """Note what was made since the last look."""
        interval = sys.getswitchinterval()
        # No other thread may run meanwhile: a tuple it is just building must not be seen to have a second
        # owner (CPython raises SystemError when it then resizes it).
        sys.setswitchinterval(0.25)
        try:
            made = gc.get_objects()
            for x in made:
                if type(x) is types.GeneratorType:
                    self.generators[id(x.gi_frame)] = weakref.ref(x)
            self.made.update(map(id, made))
            del made
        finally:
            sys.setswitchinterval(interval)
        gc.freeze()
