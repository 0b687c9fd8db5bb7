"""Frontends: load a model in its own framework and import it to Relax."""
