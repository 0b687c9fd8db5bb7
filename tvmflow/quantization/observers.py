"""Choose the range of values that a quantized tensor represents, from statistics of the calibration set.

Two passes over the calibration set: the first finds minimum and maximum, the second fills a histogram between them.
From that, each observer chooses the range [low, high]; numbers outside are clipped. Sources: KL as in TensorRT (S.
Migacz, GTC 2017); MSE by search over shrunken ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tvmflow.ir.relax.scales import Scale

Array = np.ndarray[Any, Any]
BINS = 2048


@dataclass
class Observed:
    """The statistics of a value: a histogram (BINS,) between the extremes; sum and extremes per channel of axis 1."""

    channel_low: Any = np.inf
    channel_high: Any = -np.inf
    counts: Array = field(default_factory=lambda: np.zeros(BINS))
    total: Any = 0.0
    samples: int = 0

    @classmethod
    def of(cls, value: Array) -> Observed:
        """Return the extremes and the sum of some samples, without a histogram."""
        axes = tuple(axis for axis in range(value.ndim) if axis != 1)
        total = value.mean(axis=axes[1:], keepdims=True).sum(axis=axes, dtype=np.float64)
        return cls(value.min(axis=axes), value.max(axis=axes), total=total, samples=len(value))

    def add(self, other: Observed) -> None:
        """Add the statistics of other samples, without histograms."""
        self.channel_low = np.minimum(self.channel_low, other.channel_low)
        self.channel_high = np.maximum(self.channel_high, other.channel_high)
        self.total, self.samples = self.total + other.total, self.samples + other.samples

    def divide(self, factors: Array) -> Observed:
        """Return the statistics of the value with its channels divided by positive factors, without a histogram."""
        return Observed(
            self.channel_low / factors, self.channel_high / factors, total=self.total / factors, samples=self.samples
        )

    def count(self, value: Array) -> Array:
        """Return the histogram of some samples."""
        low, high = np.float32(self.low), np.float32(self.high)
        if high <= low:
            return np.zeros(BINS)
        bins = ((value.ravel() - low) * np.float32(BINS / (float(high) - float(low)))).astype(np.int64)
        return np.bincount(np.minimum(bins, BINS - 1, out=bins), minlength=BINS)

    @property
    def low(self) -> float:
        return float(np.min(self.channel_low))

    @property
    def high(self) -> float:
        return float(np.max(self.channel_high))

    @property
    def channel_magnitude(self) -> Array:
        return np.asarray(np.maximum(np.abs(self.channel_low), np.abs(self.channel_high)))

    @property
    def channel_mean(self) -> Array:
        return np.asarray(self.total / max(self.samples, 1))

    @cached_property
    def centers(self) -> Array:
        edges = np.linspace(self.low, self.high, BINS + 1)
        return np.asarray((edges[1:] + edges[:-1]) / 2)

    def clipped(self, low: float, high: float) -> float:
        """Return the share of numbers outside [low, high], to the width of a bin."""
        total = self.counts.sum()
        width = (self.high - self.low) / BINS
        outside = (self.centers < low - width / 2) | (self.centers > high + width / 2)
        return float(self.counts[outside].sum() / total) if total else 0.0


Observer = Callable[[Observed, float, int], tuple[float, float]]


def _min_max(observed: Observed, _percentile: float, _levels: int) -> tuple[float, float]:
    return observed.low, observed.high


def _percentile(observed: Observed, percentile: float, _levels: int) -> tuple[float, float]:
    """Drop half of (100 - percentile) % at each end; an end at zero (as of ReLU) is kept."""
    total = observed.counts.sum()
    if not total:
        return observed.low, observed.high
    share = np.cumsum(observed.counts) / total
    tail = (1 - percentile / 100) / 2
    edges = np.linspace(observed.low, observed.high, BINS + 1)
    low = float(edges[int(np.searchsorted(share, tail))])
    high = float(edges[min(int(np.searchsorted(share, 1 - tail)) + 1, BINS)])
    return (observed.low if observed.low >= 0 else low), high


def _mse(observed: Observed, _percentile: float, levels: int) -> tuple[float, float]:
    """Shrink the range in 80 steps (both ends, then each) and keep the least mean squared error."""
    if not observed.counts.any():
        return observed.low, observed.high
    best = (observed.low, observed.high)
    factors = np.concatenate([[1.0], np.linspace(0.99, 0.2, 80)])
    for ends in ((True, True), (True, False), (False, True)):
        lows, highs = (
            end * (factors if moves else np.ones_like(factors)) for end, moves in zip(best, ends, strict=True)
        )
        chosen = int(np.argmin(_errors(observed, lows, highs, levels)))
        best = (float(lows[chosen]), float(highs[chosen]))
    return best


def _errors(observed: Observed, lows: Array, highs: Array, levels: int) -> Array:
    """Return the squared error of each range."""
    some = observed.counts > 0
    centers, counts = observed.centers[some], observed.counts[some]
    low, high = np.minimum(lows, 0.0)[:, None], np.maximum(highs, 0.0)[:, None]
    scale = np.maximum(high - low, 1e-300) / levels
    rounded = np.rint(np.clip(centers, low, high) / scale) * scale
    # A range that represents a center exactly would seem exact: add the variance inside a bin.
    within = ((observed.high - observed.low) / BINS) ** 2 / 12
    squared = (rounded - centers) ** 2 + within
    inside = (centers >= low) & (centers <= high)
    squared = np.where(inside, np.maximum(squared, scale**2 / 12), squared)
    return np.where(high[:, 0] > low[:, 0], squared @ counts, np.inf)


def noise_share(observed: Observed, scale: Scale) -> float:
    """Return the noise power of a scale's rounding and clipping, relative to the power of the value."""
    if not observed.counts.any():
        centers, counts = np.array([observed.high]), np.ones(1)
    else:
        centers, counts = observed.centers, observed.counts
    low, high = scale.limits
    outside = np.maximum(np.maximum(low - centers, centers - high), 0.0)
    noise = float((counts * (outside**2 + scale.scale**2 / 12)).sum())
    return noise / max(float((counts * centers**2).sum()), 1e-30)


def _kl(observed: Observed, _percentile: float, levels: int) -> tuple[float, float]:
    """Choose the threshold on |x| with the least KL divergence of the quantized histogram from the clipped one."""
    if not observed.counts.any():
        return observed.low, observed.high
    largest = max(abs(observed.low), abs(observed.high))
    counts, _ = np.histogram(np.abs(observed.centers), BINS, (0, largest), weights=observed.counts)
    one_sided = observed.low >= 0
    kept = levels + 1 if one_sided else (levels + 1) // 2
    counts[0] = counts[1] if one_sided else counts[0]  # exact zeros are exact for any threshold
    best, threshold = np.inf, largest
    for stop in range(kept, BINS + 1, 16):
        divergence = _divergence(counts[:stop], float(counts[stop:].sum()), kept)
        if divergence < best:
            best, threshold = divergence, largest * stop / BINS
    return max(observed.low, -threshold), min(observed.high, threshold)


def _divergence(reference: Array, outliers: float, levels: int) -> float:
    p = reference.copy()
    p[-1] += outliers
    group = (np.arange(len(reference)) * levels) // len(reference)
    filled = reference > 0
    sums = np.bincount(group, reference, levels)
    numbers = np.bincount(group, filled, levels)
    q = np.where(filled, (sums / np.maximum(numbers, 1))[group], 0.0)
    p, q = p / max(p.sum(), 1e-12), q / max(q.sum(), 1e-12)
    epsilon = 1e-9
    q = np.where((q == 0) & (p > 0), epsilon, q)
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())


OBSERVERS: dict[str, Observer] = {"minmax": _min_max, "percentile": _percentile, "kl": _kl, "mse": _mse}
