"""Relax graphs: layers, operator tables, a numpy interpreter, serialization."""
