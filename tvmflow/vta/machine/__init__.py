"""Simulators of VTA, a program linter and performance counters."""
