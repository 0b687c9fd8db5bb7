"""Reproducible benchmarks: one command, one table."""
