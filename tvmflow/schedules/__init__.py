"""Schedule templates for CPUs and GPUs and the intrinsics that they use."""
