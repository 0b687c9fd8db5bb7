"""VTA's configuration, instruction set and programs."""
