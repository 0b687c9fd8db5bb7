"""GPU code generation: lowered kernels to OpenCL C, GLSL and SPIR-V, and their launches."""
