"""TensorIR kernels before scheduling: blocks, workloads, custom operators and rewriting."""
