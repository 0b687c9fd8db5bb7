"""Import MXNet models."""
