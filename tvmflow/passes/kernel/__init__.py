"""Passes over lowered kernels (TIR): schedules, buffers, alignment."""
