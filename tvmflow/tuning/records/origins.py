"""Where the schedule of a kernel comes from.

reused: measured under this toolchain before. re-measured: the older toolchain's, which held. re-tuned: searched anew,
because that got slower. lost: searched anew, because that does not apply any more. new: never tuned before on this kind
of device.
"""

from __future__ import annotations

REUSED, REMEASURED, RETUNED, LOST, NEW = ORIGINS = ("reused", "re-measured", "re-tuned", "lost", "new")
