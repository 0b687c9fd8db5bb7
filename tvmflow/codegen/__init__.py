"""Code generation from packed Relax to a library."""
