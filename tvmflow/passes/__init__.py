"""Our Relax and TensorIR passes, one per file."""
