"""Accuracy, agreement, latency, and comparison with baselines."""
