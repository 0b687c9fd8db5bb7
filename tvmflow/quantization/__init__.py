"""Conversion of models to the precision of their cells: int8, mixed 16-bit precision, VTA's int8."""
