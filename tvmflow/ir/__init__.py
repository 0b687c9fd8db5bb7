"""Intermediate representations: Relax graphs, TensorIR kernels, and differences of TVM's versions."""
