"""The version of tvmflow, for every part that writes it down."""

__version__ = "0.1.0"
