"""Bring a model to the precision of its cell."""
