"""The integer graph, its numpy definition and its emission to Relax; IR files; names of TVM that differ between
versions.
"""
