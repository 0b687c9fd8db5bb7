"""Format the progress lines of tuning: a first line that stays, and a line that is updated."""

from __future__ import annotations

import re

FIRST = "first: "  # prefix of the line that stays
_LITTLE = 0.02  # expected gain below which no exact share is shown
_FIRST_MS = re.compile(rf"^{FIRST}(?:about )?([\d.e+-]+) ms\b")
_WON = re.compile(r"([\d.]+)% of the network's kernels won")


def format_first_line(ms: float, doubt: str, comparison: str, gain: str) -> str:
    """Return the first line: time with default schedules, comparison with a baseline, expected gain of tuning.

    doubt: what disturbed the measurement, "" for nothing.
    """
    time_text = f"{'about ' if doubt else ''}{ms:.3g} ms with default schedules{f' ({doubt})' if doubt else ''}"
    parts = [f"{time_text}, {comparison}" if comparison else time_text, gain]
    return FIRST + "; ".join(part for part in parts if part)


def comparison_text(times_faster: float | None, low: float | None, high: float | None, baseline: str) -> str:
    """Return the comparison of a network with a baseline, "" without an interval.

    low, high: the interval of the ratio.
    """
    if times_faster is None or low is None or high is None:
        return ""
    return (
        f"no difference shown to {baseline}" if low <= 1 <= high else f"{times_faster:.2g} times as fast as {baseline}"
    )


def gain_text(share: float, seconds: float) -> str:
    """Return the expected gain of a search and its duration."""
    when = f"{round(seconds, -1):.0f} s" if seconds < 95 else f"{seconds / 60:.0f} minutes"
    what = f"about {share:.0%}" if share >= _LITTLE else f"less than {_LITTLE:.0%}"
    return f"expected tuning gain: {what} in {when}"


def won_text(share: float) -> str:
    """Return the gain of a search so far, in the form that `add_current_time` parses."""
    return f"{share:.1%} of the network's kernels won"


def first_ms_of(text: str) -> float | None:
    """Return the time in a line of `format_first_line`, None for any other line."""
    found = _FIRST_MS.match(text)
    return float(found[1]) if found else None


def add_current_time(text: str, first_ms: float | None) -> str:
    """Append the current time of the network, computed from the gain so far, to a status text."""
    found = _WON.search(text)
    if first_ms is None or found is None:
        return text
    return f"{text}: about {first_ms * (1 - float(found[1]) / 100):.3g} ms now, {first_ms:.3g} ms first"
