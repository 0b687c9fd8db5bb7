"""params.yaml: its sections, value types, keys, options and the workspace that it describes."""
