"""Backends: one file for each kind of processor."""
