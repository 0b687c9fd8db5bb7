"""Define the version of tvmflow."""

__version__ = "0.1.0"
