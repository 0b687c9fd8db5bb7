"""GPUs: kernels as their drivers launch them, code for OpenCL and Vulkan, and schedule templates."""
