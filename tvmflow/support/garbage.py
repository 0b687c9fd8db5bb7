"""Python's collector of cyclic garbage, for processes that build graphs of hundreds of thousands of objects."""

from __future__ import annotations

import gc

_COLLECT_AFTER = (100_000, 20, 20)  # objects, collections: the default, 700 objects, is a tenth of an import's time


def collect_rarely() -> None:
    """Collect seldom, for the rest of this process: 8 % of a build, 10 % of an import, for 1 to 7 % more memory."""
    gc.set_threshold(*_COLLECT_AFTER)
