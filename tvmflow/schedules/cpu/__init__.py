"""Schedule templates for CPU kernels."""
