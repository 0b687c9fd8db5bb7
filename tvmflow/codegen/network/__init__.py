"""Linking of network.so, the self-contained library: memory plan, tables and runtime sources."""
