"""Name the origin of a kernel's schedule.

reused: measured before with this toolchain. re-measured: from an older toolchain, and still as fast. re-tuned: searched
again, because the old schedule got slower. lost: searched again, because the old schedule does not apply any more. new:
never tuned before on this kind of device.
"""

from __future__ import annotations

REUSED, REMEASURED, RETUNED, LOST, NEW = ORIGINS = ("reused", "re-measured", "re-tuned", "lost", "new")
