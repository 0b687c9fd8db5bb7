"""Compile Relax layers to VTA programs."""
