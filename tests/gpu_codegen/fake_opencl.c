/* A driver of OpenCL that does one thing wrong, FAULT, and else pretends: nothing is computed. 'L': what it gives back is in the file FAKE_TRUTH,
 * one output behind the other, and it fails when that is gone. */
#include "opencl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long told;
static int runs; /* that ended */
static int is_gone;

static void tell(void *to, size_t size) {
  FILE *file = fopen(getenv("FAKE_TRUTH"), "rb");
  is_gone = !file;
  if (!file) return;
  fseek(file, told, SEEK_SET);
  told = fread(to, 1, size, file) == size ? ftell(file) : 0;
  if (fgetc(file) == EOF) told = 0;
  fclose(file);
}

#define ONE(name) ((void *)(intptr_t)(name))
#define UNUSED(x) (void)(x)

cl_int clGetPlatformIDs(cl_uint most, cl_platform_id *found, cl_uint *count) {
  if (most) *found = ONE(1);
  *count = FAULT == 'p' ? 0 : 1;
  return 0;
}
cl_int clGetPlatformInfo(cl_platform_id p, cl_uint what, size_t size, void *to, size_t *n) { return UNUSED(p), UNUSED(what), UNUSED(size), UNUSED(to), UNUSED(n), -30; }
cl_int clGetDeviceIDs(cl_platform_id p, cl_bitfield t, cl_uint most, cl_device_id *found, cl_uint *count) {
  UNUSED(p), UNUSED(t);
  if (most) *found = ONE(2);
  *count = 1;
  return 0;
}
cl_int clGetDeviceInfo(cl_device_id d, cl_uint what, size_t size, void *to, size_t *n) {
  UNUSED(d), UNUSED(n);
  if (what == CL_DEVICE_NAME) return strncpy(to, "Fake GPU", size), 0;
  if (what == CL_DEVICE_TYPE) return *(cl_bitfield *)to = CL_DEVICE_TYPE_GPU, 0;
  return -30;
}
cl_context clCreateContext(const intptr_t *p, cl_uint n, const cl_device_id *d, void (*f)(const char *, const void *, size_t, void *), void *u, cl_int *e) {
  UNUSED(p), UNUSED(n), UNUSED(d), UNUSED(f), UNUSED(u);
  return *e = FAULT == 'x' ? -6 : 0, FAULT == 'x' ? NULL : ONE(3);
}
cl_int clReleaseContext(cl_context c) { return UNUSED(c), 0; }
cl_command_queue clCreateCommandQueue(cl_context c, cl_device_id d, cl_bitfield b, cl_int *e) { return UNUSED(c), UNUSED(d), UNUSED(b), *e = 0, ONE(4); }
cl_int clReleaseCommandQueue(cl_command_queue q) { return UNUSED(q), 0; }
cl_mem clCreateBuffer(cl_context c, cl_bitfield b, size_t size, void *x, cl_int *e) {
  UNUSED(c), UNUSED(b), UNUSED(size), UNUSED(x);
  return *e = FAULT == 'm' ? -4 : 0, FAULT == 'm' ? NULL : ONE(5);
}
cl_mem clCreateImage(cl_context c, cl_bitfield b, const cl_image_format *f, const cl_image_desc *d, void *x, cl_int *e) {
  return UNUSED(c), UNUSED(b), UNUSED(f), UNUSED(d), UNUSED(x), *e = -10, NULL;
}
cl_int clReleaseMemObject(cl_mem m) { return UNUSED(m), 0; }
cl_program clCreateProgramWithSource(cl_context c, cl_uint n, const char **s, const size_t *l, cl_int *e) { return UNUSED(c), UNUSED(n), UNUSED(s), UNUSED(l), *e = 0, ONE(6); }
cl_program clCreateProgramWithBinary(cl_context c, cl_uint n, const cl_device_id *d, const size_t *l, const unsigned char **b, cl_int *s, cl_int *e) {
  return UNUSED(c), UNUSED(n), UNUSED(d), UNUSED(l), UNUSED(b), *s = *e = -42, NULL;
}
cl_int clGetProgramInfo(cl_program p, cl_uint what, size_t size, void *to, size_t *n) { return UNUSED(p), UNUSED(what), UNUSED(size), UNUSED(to), UNUSED(n), -30; }
cl_int clBuildProgram(cl_program p, cl_uint n, const cl_device_id *d, const char *o, void (*f)(cl_program, void *), void *u) {
  return UNUSED(p), UNUSED(n), UNUSED(d), UNUSED(o), UNUSED(f), UNUSED(u), FAULT == 'c' ? -11 : 0;
}
cl_int clGetProgramBuildInfo(cl_program p, cl_device_id d, cl_uint w, size_t size, void *to, size_t *n) {
  return UNUSED(p), UNUSED(d), UNUSED(w), UNUSED(n), strncpy(to, "line 7: what is float4?", size), 0;
}
cl_int clReleaseProgram(cl_program p) { return UNUSED(p), 0; }
cl_kernel clCreateKernel(cl_program p, const char *n, cl_int *e) { return UNUSED(p), UNUSED(n), *e = 0, ONE(7); }
cl_int clGetKernelWorkGroupInfo(cl_kernel k, cl_device_id d, cl_uint w, size_t size, void *to, size_t *n) {
  return UNUSED(k), UNUSED(d), UNUSED(w), UNUSED(size), UNUSED(n), *(size_t *)to = FAULT == 'g' ? 1 : 1024, 0;
}
cl_int clSetKernelArg(cl_kernel k, cl_uint i, size_t s, const void *v) { return UNUSED(k), UNUSED(i), UNUSED(s), UNUSED(v), 0; }
cl_int clReleaseKernel(cl_kernel k) { return UNUSED(k), 0; }
cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint d, const size_t *o, const size_t *g, const size_t *l, cl_uint n, const cl_event *w, cl_event *e) {
  return UNUSED(q), UNUSED(k), UNUSED(d), UNUSED(o), UNUSED(g), UNUSED(l), UNUSED(n), UNUSED(w), UNUSED(e), FAULT == 'l' || (FAULT == 'n' && runs) ? -36 : 0;
}
cl_int clEnqueueReadBuffer(cl_command_queue q, cl_mem m, cl_uint b, size_t o, size_t size, void *to, cl_uint n, const cl_event *w, cl_event *e) {
  UNUSED(q), UNUSED(m), UNUSED(b), UNUSED(o), UNUSED(size), UNUSED(to), UNUSED(n), UNUSED(w);
  if (e) *e = ONE(8);
  if (FAULT == 'L') tell(to, size);
  return 0;
}
cl_int clEnqueueWriteBuffer(cl_command_queue q, cl_mem m, cl_uint b, size_t o, size_t size, const void *from, cl_uint n, const cl_event *w, cl_event *e) {
  return UNUSED(q), UNUSED(m), UNUSED(b), UNUSED(o), UNUSED(size), UNUSED(from), UNUSED(n), UNUSED(w), UNUSED(e), 0;
}
cl_int clEnqueueCopyBuffer(cl_command_queue q, cl_mem a, cl_mem b, size_t x, size_t y, size_t size, cl_uint n, const cl_event *w, cl_event *e) {
  return UNUSED(q), UNUSED(a), UNUSED(b), UNUSED(x), UNUSED(y), UNUSED(size), UNUSED(n), UNUSED(w), UNUSED(e), 0;
}
cl_int clEnqueueReadImage(cl_command_queue q, cl_mem m, cl_uint b, const size_t *o, const size_t *r, size_t x, size_t y, void *to, cl_uint n, const cl_event *w, cl_event *e) {
  return UNUSED(q), UNUSED(m), UNUSED(b), UNUSED(o), UNUSED(r), UNUSED(x), UNUSED(y), UNUSED(to), UNUSED(n), UNUSED(w), UNUSED(e), -59;
}
cl_int clEnqueueWriteImage(cl_command_queue q, cl_mem m, cl_uint b, const size_t *o, const size_t *r, size_t x, size_t y, const void *from, cl_uint n, const cl_event *w, cl_event *e) {
  return UNUSED(q), UNUSED(m), UNUSED(b), UNUSED(o), UNUSED(r), UNUSED(x), UNUSED(y), UNUSED(from), UNUSED(n), UNUSED(w), UNUSED(e), -59;
}
void *clEnqueueMapBuffer(cl_command_queue q, cl_mem m, cl_uint b, cl_bitfield f, size_t o, size_t size, cl_uint n, const cl_event *w, cl_event *e, cl_int *error) {
  return UNUSED(q), UNUSED(m), UNUSED(b), UNUSED(f), UNUSED(o), UNUSED(size), UNUSED(n), UNUSED(w), UNUSED(e), *error = -12, NULL;
}
cl_int clEnqueueUnmapMemObject(cl_command_queue q, cl_mem m, void *at, cl_uint n, const cl_event *w, cl_event *e) {
  return UNUSED(q), UNUSED(m), UNUSED(at), UNUSED(n), UNUSED(w), UNUSED(e), 0;
}
cl_int clGetEventInfo(cl_event e, cl_uint what, size_t size, void *to, size_t *n) {
  return UNUSED(e), UNUSED(what), UNUSED(size), UNUSED(n), *(cl_int *)to = FAULT == 'h' ? 1 : FAULT == 'r' ? -14 : CL_COMPLETE, 0;
}
cl_int clGetEventProfilingInfo(cl_event e, cl_uint what, size_t size, void *to, size_t *n) { return UNUSED(e), UNUSED(what), UNUSED(size), UNUSED(to), UNUSED(n), -7; }
cl_int clReleaseEvent(cl_event e) { return UNUSED(e), 0; }
cl_int clFlush(cl_command_queue q) { return UNUSED(q), 0; }
cl_int clFinish(cl_command_queue q) { return UNUSED(q), FAULT == 'f' || (FAULT == 'e' && runs) || is_gone ? -5 : (runs += 1, 0); }
