"""Accuracy, agreement, latency, and comparison with peers."""
