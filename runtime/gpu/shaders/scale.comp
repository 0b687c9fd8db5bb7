#version 450
// A self-test of the probe: y = 2 x + 1. self_tests.h holds it compiled by glslangValidator -V --target-env vulkan1.1.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Input { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Output { float y[]; };
void main() {
  uint i = gl_GlobalInvocationID.x;
  y[i] = x[i] * 2.0 + 1.0;
}
