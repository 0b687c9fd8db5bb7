/* Run a network on a GPU through OpenCL: one in-order queue, kernel arguments set once, kernels recorded once where the driver supports it,
 * one buffer for each memory slot of the plan. */
#define _GNU_SOURCE
#include "clml.h"
#include "clock.h"
#include "network_gpu.h"
#include "opencl.h"
#include "program_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_PLATFORMS 8
#define MOST_DEVICES 8
#define TEXT GPU_NAME
#define EXTENSIONS_SIZE 16384
#ifndef HANGS_MS
#define HANGS_MS 20000 /* of the first run, in which drivers may still compile */
#endif

struct gpu_part {
  opencl api;
  cl_device_id device;
  cl_context context;
  cl_command_queue queue, timed, recorder; /* timed: made when first needed */
  cl_recording_qcom recording; /* of all kernels; NULL where drivers cannot */
  cl_mem *values;   /* one per value of the plan; values of one place share theirs */
  uint8_t *owned;   /* whether values[i] is released with the part */
  cl_kernel *kernels; /* one per step */
  cl_event *events; /* CLML_EVENTS per step, while it is timed: of its kernel or operator, then of copies */
  clml_part *clml;  /* NULL where kernels compute all */
  cl_command_queue *recorders;    /* one per step: of the operators that begin there and are recorded, NULL for none */
  cl_recording_qcom *recordings;
  void **mapped;    /* one per output, while it is read */
  cl_uint shared;   /* the host and the device have the same memory */
  int ran, lost;    /* a run is over; the device is of no use any more */
  int hangs;        /* a run may still be going on */
};

static int fail(char *why, const char *call, cl_int error) {
  snprintf(why, GPU_REASON, "OpenCL: %s: error %d", call, error);
  return -1;
}

static void read_info(const opencl *api, cl_device_id device, cl_uint what, char *text) {
  text[0] = 0;
  if (api->clGetDeviceInfo(device, what, TEXT - 1, text, NULL) != CL_SUCCESS) text[0] = 0;
  text[TEXT - 1] = 0;
}

/* -- the device -- */

/* Whether a device is wanted, and how much: 2 for a GPU, 1 for any other, 0 for none. */
static int rank_of(const opencl *api, cl_device_id device, const char *named) {
  char name[TEXT];
  cl_bitfield type = 0;
  read_info(api, device, CL_DEVICE_NAME, name);
  if (named && !strstr(name, named)) return 0;
  api->clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
  return type & CL_DEVICE_TYPE_GPU ? 2 : 1;
}

static int find_device(gpu_part *part, const char *named, char *why) {
  cl_platform_id platforms[MOST_PLATFORMS];
  cl_device_id devices[MOST_DEVICES];
  cl_uint platform_count = 0;
  int best = 0;
  if (part->api.clGetPlatformIDs(MOST_PLATFORMS, platforms, &platform_count) != CL_SUCCESS) platform_count = 0;
  for (cl_uint i = 0; i < platform_count && i < MOST_PLATFORMS; ++i) {
    cl_uint count = 0;
    if (part->api.clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count) != CL_SUCCESS) continue;
    for (cl_uint j = 0; j < count && j < MOST_DEVICES; ++j) {
      int rank = rank_of(&part->api, devices[j], named);
      if (rank > best) part->device = devices[j], best = rank;
    }
  }
  if (best) return 0;
  snprintf(why, GPU_REASON, "OpenCL: %s lists no device%s%.100s", part->api.name, named ? " with this in its name: " : "", named ? named : "");
  return -1;
}

/* -- memory -- */

static uint64_t size_of(const plan_value *value) {
  uint64_t size = value->bits / 8;
  for (uint32_t axis = 0; axis < value->ndim; ++axis) size *= (uint64_t)value->shape[axis];
  return size ? size : 1;
}

static const plan_texture *texture_of(uint32_t at) {
  return plan.gpu->textures && plan.gpu->textures[at].width ? &plan.gpu->textures[at] : NULL;
}

/* Whether the host reaches a value, an input or an output, in the device's own memory. */
static int is_mapped(const gpu_part *part, uint32_t at) {
  return part->shared && !texture_of(at) && (plan.values[at].place == PLAN_INPUT || plan.values[at].place == PLAN_OUTPUT);
}

static cl_mem create_buffer(gpu_part *part, uint64_t size, const void *content, int mapped, char *why) {
  cl_int error = CL_SUCCESS;
  const cl_bitfield how = (content ? CL_MEM_COPY_HOST_PTR : 0) | (mapped ? CL_MEM_ALLOC_HOST_PTR : 0);
  cl_mem made = part->api.clCreateBuffer(part->context, CL_MEM_READ_WRITE | how, (size_t)size, (void *)(uintptr_t)content, &error);
  if (!made || error != CL_SUCCESS) {
    snprintf(why, GPU_REASON, "OpenCL: no buffer of %llu bytes: error %d", (unsigned long long)size, error);
    return NULL;
  }
  return made;
}

/* content: of as many rows as there are, or NULL. */
static cl_mem create_texture(gpu_part *part, const plan_value *value, size_t width, size_t height, const void *content, char *why) {
  const cl_uint floats = value->bits == 16 ? CL_HALF_FLOAT : CL_FLOAT, integers = value->bits == 8 ? CL_SIGNED_INT8 : CL_SIGNED_INT32;
  const cl_image_format format = {CL_RGBA, value->code == 2 ? floats : value->code == 1 ? CL_UNSIGNED_INT8 : integers};
  const cl_image_desc shape = {.type = CL_MEM_OBJECT_IMAGE2D, .width = width, .height = height};
  cl_int error = CL_SUCCESS;
  cl_mem made = part->api.clCreateImage(part->context, CL_MEM_READ_WRITE | (content ? CL_MEM_COPY_HOST_PTR : 0), &format, &shape,
                                        (void *)(uintptr_t)content, &error);
  if (made && error == CL_SUCCESS) return made;
  snprintf(why, GPU_REASON, "OpenCL: no image of %zu x %zu vectors of four numbers of %d bits: error %d", width, height, value->bits, error);
  return NULL;
}

static int is_at(const plan_value *value, const plan_value *other) {
  return value->place == other->place && value->index == other->index && value->offset == other->offset;
}

/* -- layers of CLML -- */

static int is_layer(uint32_t step) { return plan.gpu->layers && plan.gpu->layers[step].kind != PLAN_LAYER_NONE; }

/* Whether only layers touch a value. */
static int is_inner(uint32_t at) { return plan.gpu->inner && plan.gpu->inner[at]; }

static void *find_function(const void *loaded, const char *name) { return opencl_function(loaded, name); }

static int open_clml(gpu_part *part, char *why) {
  const clml_driver driver = {find_function, &part->api, part->context, part->queue};
  return plan.gpu->layers ? clml_open(&driver, &part->clml, why) : 0;
}

static uint64_t bytes_of(const gpu_part *part, uint32_t at) { return is_inner(at) ? clml_size_of(part->clml, at) : size_of(&plan.values[at]); }

/* Make the buffer of a value's place, as large as the largest value there, unless an earlier one has it. Parts of one buffer are not used: drivers
 * differ in what they ask of them, and NVIDIA's ends the process when they are released. */
static int make_value(gpu_part *part, uint32_t at, char *why) {
  const plan_value *value = &plan.values[at];
  const void *content = value->place == PLAN_CONSTANT ? plan.constants + value->offset : NULL;
  uint64_t size = 0;
  size_t height = 0;
  if (content && is_inner(at)) return 0; /* weights of a layer */
  for (uint32_t i = 0; i < at; ++i)
    if (is_at(value, &plan.values[i])) {
      part->values[at] = part->values[i];
      return 0;
    }
  for (uint32_t i = at; i < plan.value_count; ++i)
    if (is_at(value, &plan.values[i])) {
      if (bytes_of(part, i) > size) size = bytes_of(part, i);
      if (texture_of(i) && texture_of(i)->height > height) height = texture_of(i)->height;
    }
  part->values[at] = texture_of(at) ? create_texture(part, value, texture_of(at)->width, height, content, why) : create_buffer(part, size, content, is_mapped(part, at), why);
  part->owned[at] = 1;
  return part->values[at] ? 0 : -1;
}

static int make_memory(gpu_part *part, char *why) {
  part->values = calloc(plan.value_count, sizeof *part->values);
  part->owned = calloc(plan.value_count, 1);
  part->kernels = calloc(plan.step_count, sizeof *part->kernels);
  part->events = calloc((size_t)plan.step_count * CLML_EVENTS, sizeof *part->events);
  part->recorders = calloc(plan.step_count, sizeof *part->recorders);
  part->recordings = calloc(plan.step_count, sizeof *part->recordings);
  part->mapped = calloc((size_t)plan_api.outputs + 1, sizeof *part->mapped);
  if (!part->values || !part->owned || !part->kernels || !part->events || !part->mapped || !part->recorders || !part->recordings) return snprintf(why, GPU_REASON, "no memory for an instance"), -1;
  for (uint32_t i = 0; i < plan.value_count; ++i)
    if (make_value(part, i, why)) return -1;
  return 0;
}

/* -- programs -- */

/* What a compiled program depends on beside its source. */
static void key_of(const gpu_part *part, char *key, size_t size) {
  char name[TEXT], driver[TEXT], version[TEXT];
  read_info(&part->api, part->device, CL_DEVICE_NAME, name);
  read_info(&part->api, part->device, CL_DRIVER_VERSION, driver);
  read_info(&part->api, part->device, CL_DEVICE_VERSION, version);
  snprintf(key, size, "opencl|%s|%s|%s", name, driver, version);
}

static int compile(gpu_part *part, cl_program program, char *why) {
  cl_int error = part->api.clBuildProgram(program, 1, &part->device, "", NULL, NULL);
  if (error == CL_SUCCESS) return 0;
  char *log = calloc(1, 1 << 16);
  if (log) part->api.clGetProgramBuildInfo(program, part->device, CL_PROGRAM_BUILD_LOG, (1 << 16) - 1, log, NULL);
  snprintf(why, GPU_REASON, "OpenCL: the driver's compiler refuses the kernels: error %d: %.250s", error, log ? log : "");
  free(log);
  return -1;
}

/* Return the program of compiled code from the cache; NULL where there is none that the driver takes. */
static cl_program load_cached(gpu_part *part, const program_key *key) {
  size_t size = 0;
  unsigned char *code = program_cache_read(key, &size);
  if (!code) return NULL;
  cl_int error = CL_SUCCESS, status = CL_SUCCESS;
  const unsigned char *codes = code;
  cl_program program = part->api.clCreateProgramWithBinary(part->context, 1, &part->device, &size, &codes, &status, &error);
  char ignored[GPU_REASON];
  if (program && (error != CL_SUCCESS || status != CL_SUCCESS || compile(part, program, ignored))) {
    part->api.clReleaseProgram(program);
    program = NULL;
  }
  free(code);
  return program;
}

static void store_in_cache(gpu_part *part, cl_program program, const program_key *key) {
  size_t size = 0;
  if (part->api.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) != CL_SUCCESS || !size) return;
  unsigned char *code = malloc(size);
  if (code && part->api.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof code, &code, NULL) == CL_SUCCESS)
    program_cache_write(key, code, size);
  free(code);
}

static cl_program program_of(gpu_part *part, const plan_gpu_kernel *kernel, const tvmflow_gpu *wanted, char *why) {
  char text[4 * TEXT];
  key_of(part, text, sizeof text);
  const program_key key = {wanted->cache, text, kernel->code, kernel->code_size};
  cl_program program = load_cached(part, &key);
  if (program) return program;
  cl_int error = CL_SUCCESS;
  const char *source = kernel->code;
  program = part->api.clCreateProgramWithSource(part->context, 1, &source, &kernel->code_size, &error);
  if (!program) return fail(why, "clCreateProgramWithSource", error), NULL;
  if (compile(part, program, why)) {
    part->api.clReleaseProgram(program);
    return NULL;
  }
  store_in_cache(part, program, &key);
  return program;
}

static int make_kernel(gpu_part *part, uint32_t i, cl_program program, char *why) {
  const plan_gpu_kernel *kernel = &plan.gpu->kernels[i];
  cl_int error = CL_SUCCESS;
  size_t most = 0, wanted = (size_t)kernel->group_size[0] * kernel->group_size[1] * kernel->group_size[2];
  part->kernels[i] = part->api.clCreateKernel(program, kernel->name, &error);
  if (!part->kernels[i]) return fail(why, "clCreateKernel", error);
  error = part->api.clGetKernelWorkGroupInfo(part->kernels[i], part->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
  if (error == CL_SUCCESS && most < wanted) {
    snprintf(why, GPU_REASON, "OpenCL: %.100s has groups of %zu, and the device runs %zu at most", kernel->name, wanted, most);
    return -1;
  }
  const plan_step *step = &plan.steps[i];
  for (uint32_t k = 0; k < step->count; ++k) {
    error = part->api.clSetKernelArg(part->kernels[i], k, sizeof(cl_mem), &part->values[plan.arguments[step->arguments + k]]);
    if (error != CL_SUCCESS) return fail(why, "clSetKernelArg", error);
  }
  return 0;
}

static int make_kernels(gpu_part *part, const tvmflow_gpu *wanted, char *why) {
  cl_program program = NULL;
  const void *code = NULL;
  int status = 0;
  for (uint32_t i = 0; i < plan.step_count && !status; ++i) {
    if (is_layer(i)) continue;
    if (plan.gpu->kernels[i].code != code) {
      if (program) part->api.clReleaseProgram(program); /* its kernels hold it */
      code = plan.gpu->kernels[i].code;
      program = program_of(part, &plan.gpu->kernels[i], wanted, why);
    }
    status = program ? make_kernel(part, i, program, why) : -1;
  }
  if (program) part->api.clReleaseProgram(program);
  return status;
}

/* -- recording -- */

static int enqueue_kernel(gpu_part *part, cl_command_queue queue, uint32_t i, cl_event *event, char *why) {
  const plan_gpu_kernel *kernel = &plan.gpu->kernels[i];
  size_t local[3], global[3];
  for (int axis = 0; axis < 3; ++axis) {
    local[axis] = kernel->group_size[axis];
    global[axis] = local[axis] * kernel->groups[axis];
  }
  cl_int error = part->api.clEnqueueNDRangeKernel(queue, part->kernels[i], 3, NULL, global, local, 0, NULL, event);
  return error == CL_SUCCESS ? 0 : fail(why, kernel->name, error);
}

/* The end of the layers that follow each other from a step on. */
static uint32_t end_of_layers(uint32_t step) {
  while (step < plan.step_count && is_layer(step)) ++step;
  return step;
}

/* Launch the layers from a step on that follow each other, recorded or one by one. Copies to their layout come before all of them, and those back behind:
 * kernels read what they made only later. */
static int enqueue_layers(gpu_part *part, cl_command_queue queue, uint32_t first, cl_event *events, char *why) {
  const uint32_t end = end_of_layers(first);
  int status = 0;
  for (uint32_t i = first; i < end && !status; ++i)
    status = clml_enqueue_copies(part->clml, queue, i, 0, events ? &events[i * CLML_EVENTS + 1] : NULL, why);
  if (!status && !events && part->recordings[first] && clml_launch(part->clml, queue, part->recordings[first])) {
    part->api.clReleaseRecordingQCOM(part->recordings[first]);
    part->recordings[first] = NULL;
  }
  for (uint32_t i = first; i < end && !status && (events || !part->recordings[first]); ++i)
    status = clml_enqueue(part->clml, queue, i, events ? &events[i * CLML_EVENTS] : NULL, why);
  for (uint32_t i = first; i < end && !status; ++i)
    status = clml_enqueue_copies(part->clml, queue, i, 1, events ? &events[i * CLML_EVENTS + 1] : NULL, why);
  return status;
}

static int enqueue_kernels(gpu_part *part, cl_command_queue queue, cl_event *events, char *why) {
  for (uint32_t i = 0; i < plan.step_count;) {
    if (is_layer(i)) {
      if (enqueue_layers(part, queue, i, events, why)) return -1;
      i = end_of_layers(i);
    } else {
      if (enqueue_kernel(part, queue, i, events ? &events[i * CLML_EVENTS] : NULL, why)) return -1;
      ++i;
    }
  }
  return 0;
}

static int has_extension(const gpu_part *part, const char *name) {
  char *all = calloc(1, EXTENSIONS_SIZE);
  const int found = all && part->api.clGetDeviceInfo(part->device, CL_DEVICE_EXTENSIONS, EXTENSIONS_SIZE - 1, all, NULL) == CL_SUCCESS && strstr(all, name) != NULL;
  free(all);
  return found;
}

/* Open a recording on a queue of its own; NULL where that fails. */
static cl_recording_qcom begin_recording(gpu_part *part, cl_command_queue *recorder) {
  cl_int error = CL_SUCCESS;
  *recorder = part->api.clCreateCommandQueue(part->context, part->device, CL_QUEUE_RECORDABLE_QCOM, &error);
  return *recorder ? part->api.clNewRecordingQCOM(*recorder, &error) : NULL;
}

/* Return the recording if it is complete; NULL, and release it, if not. */
static cl_recording_qcom end_recording(gpu_part *part, cl_recording_qcom made, int status) {
  if (part->api.clEndRecordingQCOM(made) == CL_SUCCESS && !status) return made;
  part->api.clReleaseRecordingQCOM(made);
  return NULL;
}

/* Record the layers from a step on that follow each other. */
static void record_layers(gpu_part *part, uint32_t first) {
  char ignored[GPU_REASON];
  int status = 0;
  cl_recording_qcom made = begin_recording(part, &part->recorders[first]);
  if (!made) return;
  for (uint32_t i = first; i < end_of_layers(first) && !status; ++i) status = clml_enqueue(part->clml, part->recorders[first], i, NULL, ignored);
  part->recordings[first] = end_recording(part, made, status);
}

/* Record all kernels, which are then launched by one call (cl_qcom_recordable_queues), or the layers of CLML that follow each other. Where that fails there
 * is no recording. */
static void record(gpu_part *part) {
  const opencl *api = &part->api;
  char ignored[GPU_REASON];
  if (!api->clNewRecordingQCOM || !api->clEndRecordingQCOM || !api->clReleaseRecordingQCOM || !api->clEnqueueRecordingQCOM) return;
  if (!has_extension(part, "cl_qcom_recordable_queues")) return;
  if (part->clml) {
    for (uint32_t i = 0; i < plan.step_count; ++i)
      if (is_layer(i) && !(i && is_layer(i - 1))) record_layers(part, i);
    return;
  }
  cl_recording_qcom made = begin_recording(part, &part->recorder);
  if (!made) return;
  part->recording = end_recording(part, made, enqueue_kernels(part, part->recorder, NULL, ignored));
}

/* Launch what was recorded, or, where there is no recording or the driver refuses it, each kernel. */
static int enqueue_all(gpu_part *part, cl_command_queue queue, char *why) {
  if (part->recording) {
    if (part->api.clEnqueueRecordingQCOM(queue, part->recording, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, NULL) == CL_SUCCESS) return 0;
    part->api.clReleaseRecordingQCOM(part->recording);
    part->recording = NULL;
  }
  return enqueue_kernels(part, queue, NULL, why);
}

/* -- opening and closing -- */

/* What hangs stays: the GPU may still write to the memory that it was given. */
static void close_part(gpu_part *part) {
  if (!part || part->hangs) return;
  for (uint32_t i = 0; part->kernels && i < plan.step_count; ++i)
    if (part->kernels[i]) part->api.clReleaseKernel(part->kernels[i]);
  for (uint32_t i = 0; part->recorders && part->recordings && i < plan.step_count; ++i) {
    if (part->recordings[i]) part->api.clReleaseRecordingQCOM(part->recordings[i]);
    if (part->recorders[i]) part->api.clReleaseCommandQueue(part->recorders[i]);
  }
  clml_close(part->clml);
  for (uint32_t i = 0; part->values && part->owned && i < plan.value_count; ++i)
    if (part->owned[i] && part->values[i]) part->api.clReleaseMemObject(part->values[i]);
  if (part->recording) part->api.clReleaseRecordingQCOM(part->recording);
  if (part->recorder) part->api.clReleaseCommandQueue(part->recorder);
  if (part->timed) part->api.clReleaseCommandQueue(part->timed);
  if (part->queue) part->api.clReleaseCommandQueue(part->queue);
  if (part->context) part->api.clReleaseContext(part->context);
  free(part->values);
  free(part->owned);
  free(part->kernels);
  free(part->events);
  free(part->recorders);
  free(part->recordings);
  free(part->mapped);
  free(part);
}

/* Layers are tuned on a queue that times, once per folder of programs. */
static int create_layers(gpu_part *part, const tvmflow_gpu *wanted, char *why) {
  char device[4 * TEXT], text[6 * TEXT];
  cl_int error = CL_SUCCESS;
  key_of(part, device, sizeof device);
  snprintf(text, sizeof text, "clml|%.400s|%s", plan_api.network, device);
  const program_key key = {wanted->cache, text, plan.gpu->layers, plan.step_count * sizeof *plan.gpu->layers};
  if (wanted->cache && !part->timed) part->timed = part->api.clCreateCommandQueue(part->context, part->device, CL_QUEUE_PROFILING_ENABLE, &error);
  return clml_create(part->clml, part->values, &key, part->timed, why);
}

static int open_in(gpu_part *part, const tvmflow_gpu *wanted, char *why) {
  cl_int error = CL_SUCCESS;
  if (opencl_load(&part->api, wanted->library, why, GPU_REASON) || find_device(part, wanted->device, why)) return -1;
  part->context = part->api.clCreateContext(NULL, 1, &part->device, NULL, NULL, &error);
  if (!part->context) return fail(why, "clCreateContext", error);
  part->queue = part->api.clCreateCommandQueue(part->context, part->device, 0, &error);
  if (!part->queue) return fail(why, "clCreateCommandQueue", error);
  if (part->api.clGetDeviceInfo(part->device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof part->shared, &part->shared, NULL) != CL_SUCCESS) part->shared = 0;
  if (open_clml(part, why) || make_memory(part, why) || make_kernels(part, wanted, why)) return -1;
  if (part->clml && create_layers(part, wanted, why)) return -1;
  record(part);
  return 0;
}

static int open_part(const tvmflow_gpu *wanted, gpu_part **made, char *why) {
  gpu_part *part = calloc(1, sizeof *part);
  if (!part) return snprintf(why, GPU_REASON, "no memory for an instance"), -1;
  if (open_in(part, wanted, why)) {
    close_part(part);
    return -1;
  }
  *made = part;
  return 0;
}

/* -- running -- */

/* Position of the value that an input or output of the plan is; plan.value_count for one that is none. */
static uint32_t tensor(plan_place place, uint32_t index) {
  uint32_t i = 0;
  while (i < plan.value_count && (plan.values[i].place != place || plan.values[i].index != index || plan.values[i].offset)) ++i;
  return i;
}

static cl_int enqueue_write(gpu_part *part, cl_command_queue queue, uint32_t at, size_t size, const void *from) {
  const plan_texture *texture = texture_of(at);
  cl_int error = CL_SUCCESS;
  if (is_mapped(part, at)) {
    void *to = part->api.clEnqueueMapBuffer(queue, part->values[at], 1, CL_MAP_WRITE_INVALIDATE_REGION, 0, size, 0, NULL, NULL, &error);
    if (!to || error != CL_SUCCESS) return error == CL_SUCCESS ? CL_MAP_FAILURE : error;
    memcpy(to, from, size);
    return part->api.clEnqueueUnmapMemObject(queue, part->values[at], to, 0, NULL, NULL);
  }
  if (!texture) return part->api.clEnqueueWriteBuffer(queue, part->values[at], 0, 0, size, from, 0, NULL, NULL);
  const size_t origin[3] = {0}, region[3] = {texture->width, texture->height, 1};
  return part->api.clEnqueueWriteImage(queue, part->values[at], 0, origin, region, 0, 0, from, 0, NULL, NULL);
}

/* mapped: where the output lies once it is there, NULL where it is brought to `to`. */
static cl_int enqueue_read(gpu_part *part, cl_command_queue queue, uint32_t at, size_t size, void *to, void **mapped, cl_event *event) {
  const plan_texture *texture = texture_of(at);
  cl_int error = CL_SUCCESS;
  *mapped = NULL;
  if (is_mapped(part, at)) {
    *mapped = part->api.clEnqueueMapBuffer(queue, part->values[at], 0, CL_MAP_READ, 0, size, 0, NULL, event, &error);
    return *mapped || error != CL_SUCCESS ? error : CL_MAP_FAILURE;
  }
  if (!texture) return part->api.clEnqueueReadBuffer(queue, part->values[at], 0, 0, size, to, 0, NULL, event);
  const size_t origin[3] = {0}, region[3] = {texture->width, texture->height, 1};
  return part->api.clEnqueueReadImage(queue, part->values[at], 0, origin, region, 0, 0, to, 0, NULL, event);
}

static int enqueue_copies(gpu_part *part, cl_command_queue queue, char *why) {
  for (uint32_t i = 0; i < plan.copy_count; ++i) {
    const plan_copy *copy = &plan.copies[i];
    cl_int error = part->api.clEnqueueCopyBuffer(queue, part->values[copy->from], part->values[copy->to], 0, 0, (size_t)copy->size, 0, NULL, NULL);
    if (error != CL_SUCCESS) return fail(why, "clEnqueueCopyBuffer", error);
  }
  return 0;
}

/* Wait for an event no longer than HANGS_MS. */
static int wait_for(gpu_part *part, cl_event event, char *why) {
  const struct timespec pause = {0, 200000};
  cl_int status = 1;
  for (int waited = 0; waited < HANGS_MS * 5; ++waited) {
    cl_int error = part->api.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    if (error != CL_SUCCESS) return fail(why, "clGetEventInfo", error);
    if (status < 0) return fail(why, "running the kernels", status);
    if (status == CL_COMPLETE) return 0;
    nanosleep(&pause, NULL);
  }
  part->hangs = 1;
  snprintf(why, GPU_REASON, "OpenCL: the kernels did not end within %d ms", HANGS_MS);
  return -1;
}

static int read_outputs(gpu_part *part, cl_command_queue queue, void *const *outputs, char *why) {
  cl_event last = NULL;
  cl_int error = CL_SUCCESS;
  for (uint32_t i = 0; i < plan_api.outputs && error == CL_SUCCESS; ++i) {
    cl_event *event = !part->ran && i + 1 == plan_api.outputs ? &last : NULL;
    error = enqueue_read(part, queue, tensor(PLAN_OUTPUT, i), plan.outputs[i].size, outputs[i], &part->mapped[i], event);
  }
  if (error != CL_SUCCESS) return fail(why, "reading an output", error);
  if (!part->ran) { /* later runs wait as drivers do best */
    part->api.clFlush(queue);
    int status = wait_for(part, last, why);
    part->api.clReleaseEvent(last);
    if (status) return -1;
  }
  error = part->api.clFinish(queue);
  if (error != CL_SUCCESS) return fail(why, "clFinish", error);
  for (uint32_t i = 0; i < plan_api.outputs && error == CL_SUCCESS; ++i) {
    if (!part->mapped[i]) continue;
    memcpy(outputs[i], part->mapped[i], plan.outputs[i].size);
    error = part->api.clEnqueueUnmapMemObject(queue, part->values[tensor(PLAN_OUTPUT, i)], part->mapped[i], 0, NULL, NULL);
  }
  return error == CL_SUCCESS ? 0 : fail(why, "giving an output back", error);
}

static int write_inputs(gpu_part *part, cl_command_queue queue, const void *const *inputs, char *why) {
  for (uint32_t i = 0; i < plan_api.inputs; ++i) {
    uint32_t at = tensor(PLAN_INPUT, i);
    if (at == plan.value_count) continue; /* nobody reads it */
    cl_int error = enqueue_write(part, queue, at, plan.inputs[i].size, inputs[i]);
    if (error != CL_SUCCESS) return fail(why, "writing an input", error);
  }
  return 0;
}

static int run_on(gpu_part *part, const void *const *inputs, void *const *outputs, char *why) {
  if (write_inputs(part, part->queue, inputs, why)) return -1;
  if (enqueue_all(part, part->queue, why) || enqueue_copies(part, part->queue, why)) return -1;
  return read_outputs(part, part->queue, outputs, why);
}

static int finish(gpu_part *part, cl_command_queue queue, char *why) {
  cl_int error = part->api.clFinish(queue);
  return error == CL_SUCCESS ? 0 : fail(why, "clFinish", error);
}

static int add_times(gpu_part *part, uint64_t *nanoseconds, char *why) {
  for (uint32_t i = 0; i < plan.step_count * CLML_EVENTS; ++i) {
    uint64_t begin = 0, end = 0;
    if (!part->events[i]) continue;
    cl_int error = part->api.clGetEventProfilingInfo(part->events[i], CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL);
    if (error == CL_SUCCESS) error = part->api.clGetEventProfilingInfo(part->events[i], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
    if (error != CL_SUCCESS) return fail(why, "clGetEventProfilingInfo", error);
    nanoseconds[i / CLML_EVENTS] += end > begin ? end - begin : 0;
  }
  return 0;
}

/* As run_on, each part of it awaited. */
static int run_in_parts(gpu_part *part, const void *const *inputs, void *const *outputs, uint64_t *nanoseconds, char *why) {
  uint64_t *others = nanoseconds + plan.step_count, begin = now_ns();
  if (write_inputs(part, part->timed, inputs, why) || finish(part, part->timed, why)) return -1;
  others[PROFILE_INPUTS] += now_ns() - begin;
  if (enqueue_kernels(part, part->timed, part->events, why) || enqueue_copies(part, part->timed, why)) return -1;
  if (finish(part, part->timed, why)) return -1;
  begin = now_ns();
  if (read_outputs(part, part->timed, outputs, why)) return -1;
  others[PROFILE_OUTPUTS] += now_ns() - begin;
  return 0;
}

static int run_timed(gpu_part *part, const void *const *inputs, void *const *outputs, uint64_t *nanoseconds, char *why) {
  cl_int error = CL_SUCCESS;
  if (!part->timed) part->timed = part->api.clCreateCommandQueue(part->context, part->device, CL_QUEUE_PROFILING_ENABLE, &error);
  if (!part->timed) return fail(why, "clCreateCommandQueue", error);
  memset(part->events, 0, (size_t)plan.step_count * CLML_EVENTS * sizeof *part->events);
  int status = run_in_parts(part, inputs, outputs, nanoseconds, why);
  if (!status) status = add_times(part, nanoseconds, why);
  for (uint32_t i = 0; i < plan.step_count * CLML_EVENTS; ++i)
    if (part->events[i]) part->api.clReleaseEvent(part->events[i]);
  return status;
}

static int run_part(gpu_part *part, const void *const *inputs, void *const *outputs, uint64_t *nanoseconds, char *why) {
  if (part->lost) return snprintf(why, GPU_REASON, "OpenCL: an earlier run failed: the device was given up"), -1;
  int status = nanoseconds ? run_timed(part, inputs, outputs, nanoseconds, why) : run_on(part, inputs, outputs, why);
  part->lost = status != 0;
  part->ran = 1;
  return status;
}

static void identify(const gpu_part *part, gpu_identity *found) {
  cl_platform_id platform = NULL;
  read_info(&part->api, part->device, CL_DEVICE_NAME, found->device);
  read_info(&part->api, part->device, CL_DRIVER_VERSION, found->version);
  part->api.clGetDeviceInfo(part->device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
  if (!platform || part->api.clGetPlatformInfo(platform, CL_PLATFORM_NAME, GPU_NAME - 1, found->driver, NULL) != CL_SUCCESS)
    snprintf(found->driver, GPU_NAME, "opencl");
}

const gpu_functions gpu_opencl = {open_part, run_part, close_part, identify};
