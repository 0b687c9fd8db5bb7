"""Compilers, tool versions, target triples and environments of other tools."""
