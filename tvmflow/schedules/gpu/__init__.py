"""Schedule templates for GPU kernels."""
