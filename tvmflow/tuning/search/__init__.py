"""Choose the next candidates and share trials between kernels."""
