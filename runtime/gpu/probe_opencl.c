#include "opencl.h"
#include "gpu_probe.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PLATFORMS 8
#define MOST_DEVICES 8
#define REASON 300
#define EXTENSIONS 16384
#define MOST_VERSIONS 16
enum { COUNT = 1024, WIDTH = 9, HEIGHT = 5, LAYERS = 3 };

static const char API[] = "opencl";
static const char BUFFER_SOURCE[] =
    "kernel void scale(global const float *x, global float *y) { size_t i = get_global_id(0); y[i] = x[i] * 2.0f + 1.0f; }\n";
static const char HALF_SOURCE[] =
    "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
    "kernel void scale(global const half *x, global half *y) { size_t i = get_global_id(0); y[i] = x[i] * (half)2.0f + (half)1.0f; }\n";
static const char IMAGE_SOURCE[] =
    "kernel void put(global const float4 *x, write_only image2d_array_t t) {\n"
    "  int u = get_global_id(0), v = get_global_id(1), w = get_global_id(2);\n"
    "  write_imagef(t, (int4)(u, v, w, 0), x[(w * get_global_size(1) + v) * get_global_size(0) + u]);\n"
    "}\n"
    "constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;\n"
    "kernel void get(read_only image2d_array_t t, global float4 *y) {\n"
    "  int u = get_global_id(0), v = get_global_id(1), w = get_global_id(2);\n"
    "  y[(w * get_global_size(1) + v) * get_global_size(0) + u] = read_imagef(t, nearest, (int4)(u, v, w, 0)) * 2.0f + 1.0f;\n"
    "}\n";

/* One device, and what a self-test made on it. */
typedef struct {
  const opencl *api;
  cl_device_id device;
  cl_context context;
  cl_command_queue queue;
  cl_program program;
  cl_kernel kernels[2];
  cl_mem memories[3];
  char why[REASON];
  char versions[MOST_VERSIONS * 24]; /* of CLML's interface: "1.0 2.0" */
} bench;

static int fail(bench *on, const char *call, cl_int error) {
  snprintf(on->why, sizeof on->why, "%s: error %d", call, error);
  return -1;
}

static int open_bench(bench *on) {
  cl_int error = CL_SUCCESS;
  on->context = on->api->clCreateContext(NULL, 1, &on->device, NULL, NULL, &error);
  if (!on->context) return fail(on, "clCreateContext", error);
  on->queue = on->api->clCreateCommandQueue(on->context, on->device, 0, &error);
  return on->queue ? 0 : fail(on, "clCreateCommandQueue", error);
}

static void close_bench(bench *on) {
  for (int i = 0; i < 2; ++i)
    if (on->kernels[i]) on->api->clReleaseKernel(on->kernels[i]);
  for (int i = 0; i < 3; ++i)
    if (on->memories[i]) on->api->clReleaseMemObject(on->memories[i]);
  if (on->program) on->api->clReleaseProgram(on->program);
  if (on->queue) on->api->clReleaseCommandQueue(on->queue);
  if (on->context) on->api->clReleaseContext(on->context);
}

static int build(bench *on, const char *source, const char *const *names) {
  cl_int error = CL_SUCCESS;
  on->program = on->api->clCreateProgramWithSource(on->context, 1, &source, NULL, &error);
  if (!on->program) return fail(on, "clCreateProgramWithSource", error);
  error = on->api->clBuildProgram(on->program, 1, &on->device, "", NULL, NULL);
  if (error != CL_SUCCESS) {
    char *log = calloc(1, EXTENSIONS);
    if (log) on->api->clGetProgramBuildInfo(on->program, on->device, CL_PROGRAM_BUILD_LOG, EXTENSIONS - 1, log, NULL);
    snprintf(on->why, sizeof on->why, "clBuildProgram: error %d: %.200s", error, log ? log : "");
    free(log);
    return -1;
  }
  for (int i = 0; i < 2 && names[i]; ++i) {
    on->kernels[i] = on->api->clCreateKernel(on->program, names[i], &error);
    if (!on->kernels[i]) return fail(on, "clCreateKernel", error);
  }
  return 0;
}

static int make_buffer(bench *on, int at, void *values, size_t size) {
  cl_int error = CL_SUCCESS;
  on->memories[at] = on->api->clCreateBuffer(on->context, CL_MEM_READ_WRITE | (values ? CL_MEM_COPY_HOST_PTR : 0), size, values, &error);
  return on->memories[at] ? 0 : fail(on, "clCreateBuffer", error);
}

static int launch(bench *on, cl_kernel kernel, const cl_mem *first, const cl_mem *second, cl_uint dimensions, const size_t *size) {
  cl_int error = on->api->clSetKernelArg(kernel, 0, sizeof *first, first);
  if (error == CL_SUCCESS) error = on->api->clSetKernelArg(kernel, 1, sizeof *second, second);
  if (error != CL_SUCCESS) return fail(on, "clSetKernelArg", error);
  error = on->api->clEnqueueNDRangeKernel(on->queue, kernel, dimensions, NULL, size, NULL, 0, NULL, NULL);
  return error == CL_SUCCESS ? 0 : fail(on, "clEnqueueNDRangeKernel", error);
}

static int fetch(bench *on, int at, void *values, size_t size) {
  cl_int error = on->api->clEnqueueReadBuffer(on->queue, on->memories[at], 1, 0, size, values, 0, NULL, NULL);
  if (error == CL_SUCCESS) error = on->api->clFinish(on->queue);
  return error == CL_SUCCESS ? 0 : fail(on, "clEnqueueReadBuffer", error);
}

static int test_buffer(bench *on) {
  static const char *const NAMES[2] = {"scale", NULL};
  static float x[COUNT], y[COUNT];
  const size_t size[] = {COUNT};
  for (int i = 0; i < COUNT; ++i) x[i] = (float)(i % 251), y[i] = -1;
  if (build(on, BUFFER_SOURCE, NAMES) || make_buffer(on, 0, x, sizeof x) || make_buffer(on, 1, y, sizeof y)) return -1;
  if (launch(on, on->kernels[0], &on->memories[0], &on->memories[1], 1, size) || fetch(on, 1, y, sizeof y)) return -1;
  return probe_compare(y, COUNT, on->why, sizeof on->why);
}

static int test_half(bench *on) {
  static const char *const NAMES[2] = {"scale", NULL};
  static uint16_t x[COUNT], y[COUNT];
  const size_t size[] = {COUNT};
  for (unsigned i = 0; i < COUNT; ++i) x[i] = probe_half(i % 251), y[i] = 0x7e00;
  if (build(on, HALF_SOURCE, NAMES) || make_buffer(on, 0, x, sizeof x) || make_buffer(on, 1, y, sizeof y)) return -1;
  if (launch(on, on->kernels[0], &on->memories[0], &on->memories[1], 1, size) || fetch(on, 1, y, sizeof y)) return -1;
  return probe_compare_half(y, COUNT, on->why, sizeof on->why);
}

static int test_image_array(bench *on) {
  static const char *const NAMES[2] = {"put", "get"};
  static float x[WIDTH * HEIGHT * LAYERS * 4], y[WIDTH * HEIGHT * LAYERS * 4];
  const size_t size[] = {WIDTH, HEIGHT, LAYERS};
  const int count = WIDTH * HEIGHT * LAYERS * 4;
  const cl_image_format format = {CL_RGBA, CL_FLOAT};
  const cl_image_desc shape = {.type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .width = WIDTH, .height = HEIGHT, .array_size = LAYERS};
  cl_int error = CL_SUCCESS;
  for (int i = 0; i < count; ++i) x[i] = (float)(i % 251), y[i] = -1;
  if (build(on, IMAGE_SOURCE, NAMES) || make_buffer(on, 0, x, sizeof x) || make_buffer(on, 1, y, sizeof y)) return -1;
  on->memories[2] = on->api->clCreateImage(on->context, CL_MEM_READ_WRITE, &format, &shape, NULL, &error);
  if (!on->memories[2]) return fail(on, "clCreateImage", error);
  if (launch(on, on->kernels[0], &on->memories[0], &on->memories[2], 3, size)) return -1;
  if (launch(on, on->kernels[1], &on->memories[2], &on->memories[1], 3, size) || fetch(on, 1, y, sizeof y)) return -1;
  return probe_compare(y, count, on->why, sizeof on->why);
}

/* Whether CLML, Qualcomm's library of cl_qcom_ml_ops, says which versions of its interface it has; nothing else of it is called. How many there is
 * room for is a number of 32 bits or a size_t: a size_t is passed the same way where it is small. */
static int test_clml(bench *on) {
  cl_int (*query)(cl_int *, cl_int *, size_t, cl_uint *);
  cl_int major[MOST_VERSIONS], minor[MOST_VERSIONS];
  cl_uint count = 0;
  *(void **)&query = dlsym(on->api->library, "clQueryMLInterfaceVersionsQCOM");
  if (!query) return snprintf(on->why, sizeof on->why, "%s has no clQueryMLInterfaceVersionsQCOM", on->api->name), -1;
  cl_int error = query(NULL, NULL, 0, &count);
  if (error == CL_SUCCESS && count && count <= MOST_VERSIONS) error = query(major, minor, count, NULL);
  if (error != CL_SUCCESS) return fail(on, "clQueryMLInterfaceVersionsQCOM", error);
  if (!count || count > MOST_VERSIONS) return snprintf(on->why, sizeof on->why, "%u versions of its interface", count), -1;
  for (cl_uint i = 0, at = 0; i < count; ++i)
    at += (cl_uint)snprintf(on->versions + at, sizeof on->versions - at, "%s%d.%d", i ? " " : "", major[i], minor[i]);
  return 0;
}

static void run_test(FILE *out, const opencl *api, cl_device_id device, int number, const char *name, int (*test)(bench *)) {
  bench on = {.api = api, .device = device};
  probe_begin(out, API, number, name);
  probe_end(out, API, number, name, open_bench(&on) || test(&on) ? on.why : "ok");
  if (*on.versions) fprintf(out, "{\"api\":\"opencl\",\"device\":%d,\"clml\":\"%s\"}\n", number, on.versions), fflush(out);
  close_bench(&on);
}

static void add_text(FILE *out, const opencl *api, cl_device_id device, const char *key, cl_uint what, char *text) {
  text[0] = 0;
  if (api->clGetDeviceInfo(device, what, EXTENSIONS - 1, text, NULL) != CL_SUCCESS) return;
  text[EXTENSIONS - 1] = 0;
  fprintf(out, ",\"%s\":", key);
  probe_string(out, text);
}

static void add_number(FILE *out, const opencl *api, cl_device_id device, const char *key, cl_uint what) {
  uint64_t value = 0;
  size_t size = 0;
  if (api->clGetDeviceInfo(device, what, sizeof value, &value, &size) != CL_SUCCESS || size > sizeof value) return;
  if (size == sizeof(uint32_t)) {
    uint32_t narrow;
    memcpy(&narrow, &value, sizeof narrow);
    value = narrow;
  }
  fprintf(out, ",\"%s\":%llu", key, (unsigned long long)value);
}

static int has_word(const char *words, const char *word) {
  for (const char *at = words; (at = strstr(at, word)); ++at)
    if ((at == words || at[-1] == ' ') && (at[strlen(word)] == ' ' || !at[strlen(word)])) return 1;
  return 0;
}

static void probe_device(FILE *out, const opencl *api, cl_platform_id platform, cl_device_id device, int number) {
  static const struct {
    const char *key;
    cl_uint what;
  } NUMBERS[] = {
      {"type", CL_DEVICE_TYPE}, {"units", CL_DEVICE_MAX_COMPUTE_UNITS}, {"clock_mhz", CL_DEVICE_MAX_CLOCK_FREQUENCY},
      {"memory_bytes", CL_DEVICE_GLOBAL_MEM_SIZE}, {"allocation_bytes", CL_DEVICE_MAX_MEM_ALLOC_SIZE}, {"local_bytes", CL_DEVICE_LOCAL_MEM_SIZE},
      {"local_type", CL_DEVICE_LOCAL_MEM_TYPE}, {"group_size", CL_DEVICE_MAX_WORK_GROUP_SIZE}, {"images", CL_DEVICE_IMAGE_SUPPORT},
      {"image_width", CL_DEVICE_IMAGE2D_MAX_WIDTH}, {"image_height", CL_DEVICE_IMAGE2D_MAX_HEIGHT},
      {"image_layers", CL_DEVICE_IMAGE_MAX_ARRAY_SIZE}, {"shared_memory", CL_DEVICE_HOST_UNIFIED_MEMORY}};
  static char text[EXTENSIONS];
  fprintf(out, "{\"api\":\"opencl\",\"device\":%d", number);
  text[0] = 0;
  if (api->clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof text - 1, text, NULL) == CL_SUCCESS) {
    fprintf(out, ",\"platform\":");
    probe_string(out, text);
  }
  add_text(out, api, device, "name", CL_DEVICE_NAME, text);
  add_text(out, api, device, "vendor", CL_DEVICE_VENDOR, text);
  add_text(out, api, device, "version", CL_DEVICE_VERSION, text);
  add_text(out, api, device, "driver", CL_DRIVER_VERSION, text);
  for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; ++i) add_number(out, api, device, NUMBERS[i].key, NUMBERS[i].what);
  add_text(out, api, device, "extensions", CL_DEVICE_EXTENSIONS, text);
  fprintf(out, "}\n");
  fflush(out);
  uint32_t images = 0;
  api->clGetDeviceInfo(device, CL_DEVICE_IMAGE_SUPPORT, sizeof images, &images, NULL);
  run_test(out, api, device, number, "buffer", test_buffer);
  if (has_word(text, "cl_khr_fp16")) run_test(out, api, device, number, "fp16", test_half);
  if (images) run_test(out, api, device, number, "image_array", test_image_array);
  if (has_word(text, "cl_qcom_ml_ops")) run_test(out, api, device, number, "clml", test_clml);
}

void probe_opencl(FILE *out, const char *library) {
  static opencl api;
  cl_platform_id platforms[MOST_PLATFORMS];
  cl_device_id devices[MOST_DEVICES];
  cl_uint platform_count = 0, number = 0;
  char why[REASON];
  fprintf(out, "{\"api\":\"opencl\",");
  if (opencl_load(&api, library, why, sizeof why)) {
    fprintf(out, "\"error\":");
    probe_string(out, why);
    fprintf(out, "}\n");
    fflush(out);
    return;
  }
  fprintf(out, "\"library\":");
  probe_string(out, api.name);
  fprintf(out, "}\n");
  fflush(out);
  if (api.clGetPlatformIDs(MOST_PLATFORMS, platforms, &platform_count) != CL_SUCCESS) return;
  for (cl_uint i = 0; i < platform_count && i < MOST_PLATFORMS; ++i) {
    cl_uint count = 0;
    if (api.clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count) != CL_SUCCESS) continue;
    for (cl_uint j = 0; j < count && j < MOST_DEVICES; ++j) probe_device(out, &api, platforms[i], devices[j], (int)number++);
  }
}
