"""network.so: memory plan, tables, runtime sources and linking of the self-contained library."""
