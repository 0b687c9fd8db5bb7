#version 450
// A self-test of the probe: y = 2 x + 1. self_tests.h holds it compiled by glslangValidator -V --target-env vulkan1.1.
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Input { float16_t x[]; };
layout(set = 0, binding = 1) writeonly buffer Output { float16_t y[]; };
void main() {
  uint i = gl_GlobalInvocationID.x;
  y[i] = x[i] * float16_t(2.0) + float16_t(1.0);
}
