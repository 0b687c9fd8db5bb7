"""What is said of a network before its schedules are searched, and with it while they are: one line that stays, one
that lives.
"""

from __future__ import annotations

import re

FIRST = "first: "  # how the line that stays begins
_LITTLE = 0.02  # share of a network's time below which a search promises little
_FIRST_MS = re.compile(rf"^{FIRST}(?:about )?([\d.e+-]+) ms\b")
_WON = re.compile(r"([\d.]+)% of the network's kernels won")


def first_line_of(ms: float, doubt: str, beside: str, promise: str) -> str:
    """Return the line: a network's time with default schedules, what it is beside a peer, what tuning promises. doubt:
    what disturbed it, "" for nothing.
    """
    time_text = f"{'about ' if doubt else ''}{ms:.3g} ms with default schedules{f' ({doubt})' if doubt else ''}"
    parts = [f"{time_text}, {beside}" if beside else time_text, promise]
    return FIRST + "; ".join(part for part in parts if part)


def times_text(times_faster: float | None, low: float | None, high: float | None, peer: str) -> str:
    """Return how a network compares with a peer, "" where nothing can be said. low, high: the interval of the ratio."""
    if times_faster is None or low is None or high is None:
        return ""
    return f"no difference shown to {peer}" if low <= 1 <= high else f"{times_faster:.2g} times as fast as {peer}"


def promise_text(share: float, seconds: float) -> str:
    """Return what a search is expected to win, and when."""
    when = f"{round(seconds, -1):.0f} s" if seconds < 95 else f"{seconds / 60:.0f} minutes"
    what = f"about {share:.0%}" if share >= _LITTLE else f"less than {_LITTLE:.0%}"
    return f"tuning promises {what} in {when}"


def won_text(share: float) -> str:
    """Return what a search has won so far, as `with_now` reads it."""
    return f"{share:.1%} of the network's kernels won"


def first_ms_of(text: str) -> float | None:
    """Return the time that a line of `first_line_of` says, None for any other."""
    found = _FIRST_MS.match(text)
    return float(found[1]) if found else None


def with_now(text: str, first_ms: float | None) -> str:
    """Return what a search says, with what the network would take by what it has won so far."""
    found = _WON.search(text)
    if first_ms is None or found is None:
        return text
    return f"{text}: about {first_ms * (1 - float(found[1]) / 100):.3g} ms now, {first_ms:.3g} ms first"
