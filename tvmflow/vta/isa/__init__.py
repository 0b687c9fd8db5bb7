"""Configuration, instruction set and programs of VTA."""
