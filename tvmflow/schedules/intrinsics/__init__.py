"""Tensor intrinsics: dot products, AMX, Arm MMLA and lane multiply-accumulate."""
