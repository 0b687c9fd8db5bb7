/* Call CLML by the names that its header gives. Functions, constants, the order of fields and of calls are those that Apache TVM's sources use
 * (src/runtime/extra/contrib/clml); what they are as numbers only the header knows. Interface versions 1 to 5. */
#define _GNU_SOURCE
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#include <CL/cl.h>
#include <CL/cl_qcom_ml_ops.h>

#include "clml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_VERSIONS 256
#define MOST_TUNED (64u << 20) /* bytes */

/* Functions of the library itself; the others are in the table of an interface version. */
#define LIBRARY_FUNCTIONS(X) X(clCreateBuffer) X(clReleaseMemObject) X(clReleaseEvent) X(clFinish) X(clQueryMLInterfaceVersionsQCOM) X(clGetMLInterfaceQCOM)

/* A value: as CLML lays it out, and plainly where kernels touch it, too. */
typedef struct {
  cl_ml_tensor_qcom best, plain;
  cl_mem memory; /* of best; in the part's own buffer or the plan's */
  uint32_t size; /* of best, bytes */
  uint8_t is_used, is_parameter, owns;
} tensor;

struct clml_part {
#define MEMBER(name) __typeof__(&name) name;
  LIBRARY_FUNCTIONS(MEMBER)
#undef MEMBER
  clml_driver driver;
  void *table; /* of functions, of version `major` */
  cl_int major, minor;
  tensor *tensors; /* one per value of the plan */
  cl_ml_tensor_qcom unused;
  cl_ml_op_qcom *operators; /* one per step */
  cl_ml_tensor_memory_desc_qcom *memories;
  cl_ml_tensor_mem_desc_set_qcom set;
  cl_ml_tuningcache_qcom tuned;
  struct _cl_mem *const *values;
};

/* -- calling -- */

#define CASE(version, error, part, name, ...) \
  case version: \
    error = ((CLMLInterfaceV##version##QCOM *)(part)->table)->name(__VA_ARGS__); \
    break;
#define V1(...) CASE(1, __VA_ARGS__)
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 2
#define V2(...) CASE(2, __VA_ARGS__)
#else
#define V2(...)
#endif
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 3
#define V3(...) CASE(3, __VA_ARGS__)
#else
#define V3(...)
#endif
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 4
#define V4(...) CASE(4, __VA_ARGS__)
#else
#define V4(...)
#endif
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 5
#define V5(...) CASE(5, __VA_ARGS__)
#define LAST 5
#else
#define V5(...)
#define LAST CL_QCOM_ML_OPS_H_MAJOR_VERSION
#endif
#define CALL(error, part, ...) \
  switch ((part)->major) { \
    V1(error, part, __VA_ARGS__) V2(error, part, __VA_ARGS__) V3(error, part, __VA_ARGS__) V4(error, part, __VA_ARGS__) V5(error, part, __VA_ARGS__) \
    default: error = CL_INVALID_OPERATION; \
  }

static int fail(char *why, const char *call, cl_int error) {
  snprintf(why, GPU_REASON, "CLML: %s: error %d", call, error);
  return -1;
}

static int is_layer(uint32_t step) { return plan.gpu->layers[step].kind != PLAN_LAYER_NONE; }

static uint32_t argument(uint32_t step, uint32_t k) { return plan.arguments[plan.steps[step].arguments + k]; }

static uint32_t inputs_of(uint32_t step) { return plan.gpu->layers[step].kind == PLAN_LAYER_ADDITION ? 2 : 1; }

/* -- tensors -- */

enum { CNN, PARAMETER, UNUSED };

static cl_int create_tensor(clml_part *part, const cl_ml_tensor_desc_qcom *description, int usage, cl_ml_tensor_qcom *made) {
  cl_int error = CL_INVALID_OPERATION;
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 4
  const cl_ml_tensor_usage_qcom usages[] = {CL_TENSOR_USAGE_CNN_QCOM, CL_TENSOR_USAGE_PARAMETER_QCOM, CL_TENSOR_USAGE_UNUSED_QCOM};
#endif
  switch (part->major) {
    V1(error, part, clCreateMLTensorQCOM, part->driver.context, NULL, description, made)
    V2(error, part, clCreateMLTensorQCOM, part->driver.context, NULL, description, made)
    V3(error, part, clCreateMLTensorQCOM, part->driver.context, NULL, description, made)
    V4(error, part, clCreateMLTensorWithUsageQCOM, part->driver.context, NULL, description, usages[usage], made)
    V5(error, part, clCreateMLTensorWithUsageQCOM, part->driver.context, NULL, description, usages[usage], made)
    default: (void)usage;
  }
  return error == CL_SUCCESS && !*made ? CL_INVALID_VALUE : error;
}

/* A tensor of a value with up to four axes; the rest are 1. */
static int tensor_of(clml_part *part, uint32_t at, cl_ml_tensor_layout_qcom layout, int usage, cl_ml_tensor_qcom *made, char *why) {
  const plan_value *value = &plan.values[at];
  cl_uint sizes[4] = {1, 1, 1, 1};
  for (uint32_t axis = 0; axis < value->ndim; ++axis) sizes[axis] = (cl_uint)value->shape[axis];
  const cl_ml_tensor_desc_qcom description = {value->bits == 16 ? CL_HALF_FLOAT : CL_FLOAT, layout, sizes[0], sizes[1], sizes[2], sizes[3], 0,
                                              CL_TENSOR_DIMENSIONS_4D_QCOM, {0}};
  cl_int error = create_tensor(part, &description, usage, made);
  return error == CL_SUCCESS ? 0 : fail(why, "clCreateMLTensorQCOM", error);
}

static int make_tensor(clml_part *part, uint32_t at, int is_parameter, char *why) {
  tensor *made = &part->tensors[at];
  if (made->is_used) return 0;
  made->is_used = 1;
  made->is_parameter = (uint8_t)is_parameter;
  if (tensor_of(part, at, CL_TENSOR_LAYOUT_OPTIMAL_QCOM, is_parameter ? PARAMETER : CNN, &made->best, why)) return -1;
  if (!is_parameter && !plan.gpu->inner[at] && tensor_of(part, at, CL_TENSOR_LAYOUT_NCHW_QCOM, CNN, &made->plain, why)) return -1;
  cl_int error = CL_SUCCESS;
  CALL(error, part, clGetMLTensorMemorySizeQCOM, part->driver.context, made->best, &made->size)
  return error == CL_SUCCESS ? 0 : fail(why, "clGetMLTensorMemorySizeQCOM", error);
}

static int make_tensors(clml_part *part, char *why) {
  for (uint32_t i = 0; i < plan.step_count; ++i) {
    const uint32_t count = plan.steps[i].count;
    for (uint32_t k = 0; is_layer(i) && k < count; ++k)
      if (make_tensor(part, argument(i, k), k >= inputs_of(i) && k + 1 < count, why)) return -1;
  }
  cl_ml_tensor_desc_qcom none;
  memset(&none, 0, sizeof none);
  none.num_dimensions = CL_TENSOR_UNUSED_QCOM;
  cl_int error = create_tensor(part, &none, UNUSED, &part->unused);
  return error == CL_SUCCESS ? 0 : fail(why, "clCreateMLTensorQCOM", error);
}

/* -- the driver -- */

static int find_functions(clml_part *part, char *why) {
#define FIND(name) \
  *(void **)&part->name = part->driver.find(part->driver.loaded, #name); \
  if (!part->name) return snprintf(why, GPU_REASON, "CLML: the driver has no %s", #name), -1;
  LIBRARY_FUNCTIONS(FIND)
#undef FIND
  return 0;
}

/* Take the newest version that the driver and the header have. */
static int find_interface(clml_part *part, char *why) {
  cl_int major[MOST_VERSIONS], minor[MOST_VERSIONS];
  cl_uint count = 0;
  cl_int error = part->clQueryMLInterfaceVersionsQCOM(NULL, NULL, 0, &count);
  if (error == CL_SUCCESS && count && count <= MOST_VERSIONS) error = part->clQueryMLInterfaceVersionsQCOM(major, minor, count, NULL);
  if (error != CL_SUCCESS) return fail(why, "clQueryMLInterfaceVersionsQCOM", error);
  for (cl_uint i = 0; count <= MOST_VERSIONS && i < count; ++i)
    if (major[i] <= LAST && (major[i] > part->major || (major[i] == part->major && minor[i] >= part->minor))) part->major = major[i], part->minor = minor[i];
  if (part->major < 1) return snprintf(why, GPU_REASON, "CLML: the driver has no interface of version 1 to %d, which this library was built for", LAST), -1;
  error = part->clGetMLInterfaceQCOM(&part->table, part->major, part->minor);
  return error == CL_SUCCESS && part->table ? 0 : fail(why, "clGetMLInterfaceQCOM", error);
}

static int open_in(clml_part *part, char *why) {
  part->tensors = calloc(plan.value_count, sizeof *part->tensors);
  part->operators = calloc(plan.step_count, sizeof *part->operators);
  part->memories = calloc(plan.value_count * 2, sizeof *part->memories);
  if (!part->tensors || !part->operators || !part->memories) return snprintf(why, GPU_REASON, "no memory for an instance"), -1;
  return find_functions(part, why) || find_interface(part, why) || make_tensors(part, why) ? -1 : 0;
}

int clml_open(const clml_driver *driver, clml_part **made, char *why) {
  clml_part *part = calloc(1, sizeof *part);
  if (!part) return snprintf(why, GPU_REASON, "no memory for an instance"), -1;
  part->driver = *driver;
  *made = part;
  return open_in(part, why); /* closed by the caller */
}

uint64_t clml_size_of(const clml_part *part, uint32_t value) { return part->tensors[value].size; }

void clml_close(clml_part *part) {
  cl_int ignored = CL_SUCCESS;
  if (!part) return;
  for (uint32_t i = 0; part->operators && i < plan.step_count; ++i)
    if (part->operators[i]) CALL(ignored, part, clReleaseMLOpQCOM, part->operators[i])
  if (part->set) CALL(ignored, part, clReleaseMLTensorMemoryDescriptorSetQCOM, part->set)
  if (part->tuned) CALL(ignored, part, clReleaseMLTuningCacheQCOM, part->tuned)
  for (uint32_t i = 0; part->tensors && i < plan.value_count; ++i) {
    if (part->tensors[i].best) CALL(ignored, part, clReleaseMLTensorQCOM, part->tensors[i].best)
    if (part->tensors[i].plain) CALL(ignored, part, clReleaseMLTensorQCOM, part->tensors[i].plain)
    if (part->tensors[i].owns) part->clReleaseMemObject(part->tensors[i].memory);
  }
  if (part->unused) CALL(ignored, part, clReleaseMLTensorQCOM, part->unused)
  free(part->tensors);
  free(part->operators);
  free(part->memories);
  free(part);
}

/* -- memory -- */

static int upload(clml_part *part, uint32_t at, char *why) {
  cl_int error = CL_SUCCESS;
  cl_event event = NULL;
  const tensor *to = &part->tensors[at];
  void *from = (void *)(uintptr_t)(plan.constants + plan.values[at].offset);
  CALL(error, part, clEnqueueWriteMLTensorDataQCOM, part->driver.queue, from, CL_TENSOR_LAYOUT_NCHW_QCOM, to->best, to->memory, 0, NULL, &event)
  if (error != CL_SUCCESS) return fail(why, "clEnqueueWriteMLTensorDataQCOM", error);
  if (event) part->clReleaseEvent(event);
  return 0;
}

/* What only layers touch lies in the plan's buffers; a parameter, and the twin of what kernels touch, in buffers of their own. */
static int place(clml_part *part, uint32_t at, cl_uint *count, char *why) {
  tensor *placed = &part->tensors[at];
  cl_int error = CL_SUCCESS;
  if (!placed->is_parameter && plan.gpu->inner[at])
    placed->memory = part->values[at];
  else {
    placed->memory = part->clCreateBuffer(part->driver.context, CL_MEM_READ_WRITE, placed->size, NULL, &error);
    if (!placed->memory) return fail(why, "clCreateBuffer", error);
    placed->owns = 1;
  }
  part->memories[*count].tensor = placed->best;
  part->memories[(*count)++].memory = placed->memory;
  if (placed->plain) {
    part->memories[*count].tensor = placed->plain;
    part->memories[(*count)++].memory = part->values[at];
  }
  return placed->is_parameter ? upload(part, at, why) : 0;
}

static int place_all(clml_part *part, char *why) {
  cl_uint count = 0;
  cl_int error = CL_SUCCESS;
  for (uint32_t i = 0; i < plan.value_count; ++i)
    if (part->tensors[i].is_used && place(part, i, &count, why)) return -1;
  CALL(error, part, clCreateMLTensorMemoryDescriptorSetQCOM, &part->set)
  if (error != CL_SUCCESS) return fail(why, "clCreateMLTensorMemoryDescriptorSetQCOM", error);
  CALL(error, part, clUpdateMLTensorMemoryDescriptorSetQCOM, part->set, count, part->memories)
  if (error != CL_SUCCESS) return fail(why, "clUpdateMLTensorMemoryDescriptorSetQCOM", error);
  error = part->clFinish(part->driver.queue); /* the weights are read until then */
  return error == CL_SUCCESS ? 0 : fail(why, "uploading the weights", error);
}

/* -- operators -- */

static cl_arithmetic_mode_qcom arithmetic_of(const plan_layer *layer) {
  if (layer->arithmetic == PLAN_FLOAT16) return CL_ARITHMETIC_MODE_FP16_QCOM;
  return layer->arithmetic == PLAN_FLOAT32 ? CL_ARITHMETIC_MODE_FP32_QCOM : CL_ARITHMETIC_MODE_FP16_ACC32_QCOM;
}

static cl_ml_op_activation_desc_qcom activation_of(const plan_layer *layer) {
  const cl_ml_op_activation_desc_qcom made = {layer->activation == PLAN_RELU6 ? CL_ACTIVATION_RELU6 : CL_ACTIVATION_RELU, CL_PROPAGATE_NAN_QCOM,
                                              arithmetic_of(layer)};
  return made;
}

static cl_int make_convolution(clml_part *part, const plan_layer *l, const cl_ml_tensor_qcom *given, int has_bias, cl_ml_tensor_qcom to, cl_ml_op_qcom *made) {
  cl_int error = CL_SUCCESS;
  const cl_ml_op_convolution_desc_qcom window = {
      l->kind == PLAN_LAYER_CONVOLUTION ? CL_CONVOLUTION_MODE_CONVOLUTION_QCOM : CL_CONVOLUTION_MODE_DEPTHWISE_QCOM, 1, 4,
      {l->padding[0], l->padding[1]}, {l->padding[2], l->padding[3]}, {l->strides[0], l->strides[1]}, {l->dilation[0], l->dilation[1]}, 0, arithmetic_of(l)};
  const cl_ml_op_activation_desc_qcom activation = activation_of(l);
  const cl_ml_tensor_qcom bias = has_bias ? given[2] : part->unused;
  if (l->activation == PLAN_NO_ACTIVATION)
    CALL(error, part, clCreateMLOpConvolutionForwardQCOM, part->driver.context, NULL, &window, given[0], given[1], bias, to, made, part->tuned)
  else
    CALL(error, part, clCreateMLOpFusedConvolutionActivationForwardQCOM, part->driver.context, NULL, &window, &activation, given[0], given[1], bias, NULL, to,
         made, part->tuned)
  return error;
}

static cl_int make_pool(clml_part *part, const plan_layer *l, cl_ml_tensor_qcom from, cl_ml_tensor_qcom to, cl_ml_op_qcom *made) {
  cl_int error = CL_SUCCESS;
  const cl_ml_op_pooling_desc_qcom window = {l->kind == PLAN_LAYER_MAX_POOL ? CL_POOLING_MODE_MAX_QCOM : CL_POOLING_MODE_AVERAGE_EXCLUDE_PADDING_QCOM, 4,
                                             {l->padding[0], l->padding[1]}, {l->padding[2], l->padding[3]}, {l->strides[0], l->strides[1]},
                                             {l->window[0], l->window[1]}, CL_PROPAGATE_NAN_QCOM, arithmetic_of(l)};
  CALL(error, part, clCreateMLOpPoolingForwardQCOM, part->driver.context, NULL, &window, from, part->unused, to, made, part->tuned)
  return error;
}

static cl_int make_other(clml_part *part, const plan_layer *l, const cl_ml_tensor_qcom *given, cl_ml_tensor_qcom to, cl_ml_op_qcom *made) {
  cl_int error = CL_INVALID_OPERATION;
  const cl_arithmetic_mode_qcom mode = arithmetic_of(l);
  const cl_ml_op_binary_desc_qcom sum = {CL_TENSOR_OP_ADD_QCOM, {{1.0}, CL_FLOAT}, {{1.0}, CL_FLOAT}, {{0.0}, CL_FLOAT}, mode};
  const cl_ml_op_activation_desc_qcom activation = activation_of(l);
  const cl_ml_op_fully_connected_desc_qcom dense = {1, CL_FC_WEIGHT_TRANSFORM_TRANSPOSE_QCOM, mode};
  const cl_ml_op_softmax_desc_qcom softmax = {CL_SOFTMAX_ALGORITHM_ACCURATE_QCOM, CL_SOFTMAX_MODE_SPATIAL_QCOM, mode};
  cl_context in = part->driver.context;
  if (l->kind == PLAN_LAYER_ADDITION)
    CALL(error, part, clCreateMLOpBinaryQCOM, in, NULL, &sum, given[0], given[1], to, made, part->tuned)
  else if (l->kind == PLAN_LAYER_ACTIVATION)
    CALL(error, part, clCreateMLOpActivationForwardQCOM, in, NULL, &activation, given[0], part->unused, to, made, part->tuned)
  else if (l->kind == PLAN_LAYER_DENSE)
    CALL(error, part, clCreateMLOpFullyConnectedQCOM, in, NULL, &dense, given[0], given[1], given[2], to, made, part->tuned)
  else if (l->kind == PLAN_LAYER_SOFTMAX)
    CALL(error, part, clCreateMLOpSoftmaxQCOM, in, NULL, &softmax, given[0], to, made, part->tuned)
  return error;
}

static int make_operator(clml_part *part, uint32_t i, char *why) {
  const plan_layer *layer = &plan.gpu->layers[i];
  const uint32_t last = plan.steps[i].count - 1;
  cl_ml_tensor_qcom given[3] = {NULL, NULL, NULL}, to = part->tensors[argument(i, last)].best;
  cl_ml_op_qcom *made = &part->operators[i];
  cl_int error;
  for (uint32_t k = 0; k < last && k < 3; ++k) given[k] = part->tensors[argument(i, k)].best;
  if (layer->kind == PLAN_LAYER_CONVOLUTION || layer->kind == PLAN_LAYER_DEPTHWISE_CONVOLUTION)
    error = make_convolution(part, layer, given, last == 3, to, made);
  else if (layer->kind == PLAN_LAYER_MAX_POOL || layer->kind == PLAN_LAYER_AVERAGE_POOL)
    error = make_pool(part, layer, given[0], to, made);
  else
    error = make_other(part, layer, given, to, made);
  return error == CL_SUCCESS && *made ? 0 : fail(why, plan.steps[i].name, error);
}

/* -- what the driver found by trying -- */

/* Load what an earlier start found; return whether there was any. Failures cost time, not outputs. */
static int load_tuned(clml_part *part, const program_key *key) {
  cl_int error = CL_SUCCESS;
  size_t size = 0;
  CALL(error, part, clCreateMLTuningCacheQCOM, &part->tuned)
  if (error != CL_SUCCESS) {
    part->tuned = NULL;
    return 0;
  }
  unsigned char *kept = program_cache_read(key, &size);
  if (!kept) return 0;
  CALL(error, part, clLoadMLTuningCacheQCOM, part->tuned, size, kept)
  free(kept);
  return error == CL_SUCCESS;
}

static void tune(clml_part *part, struct _cl_command_queue *queue, const program_key *key) {
  cl_int error = CL_SUCCESS;
  size_t size = 0, written = 0;
  for (uint32_t i = 0; i < plan.step_count && error == CL_SUCCESS; ++i)
    if (is_layer(i)) CALL(error, part, clTuneMLOpQCOM, queue, part->operators[i], part->set, part->tuned, NULL)
  if (error == CL_SUCCESS) CALL(error, part, clSaveMLTuningCacheQCOM, part->tuned, 0, NULL, &size)
  unsigned char *made = error == CL_SUCCESS && size && size <= MOST_TUNED ? malloc(size) : NULL;
  if (!made) return;
  CALL(error, part, clSaveMLTuningCacheQCOM, part->tuned, size, made, &written)
  if (error == CL_SUCCESS && written == size) program_cache_write(key, made, size);
  free(made);
}

int clml_create(clml_part *part, struct _cl_mem *const *values, const program_key *tuning, struct _cl_command_queue *profiled, char *why) {
  part->values = values;
  const int is_tuned = tuning->folder ? load_tuned(part, tuning) : 0;
  if (place_all(part, why)) return -1;
  for (uint32_t i = 0; i < plan.step_count; ++i)
    if (is_layer(i) && make_operator(part, i, why)) return -1;
  if (tuning->folder && part->tuned && profiled && !is_tuned) tune(part, profiled, tuning);
  return 0;
}

/* -- running -- */

int clml_enqueue(clml_part *part, struct _cl_command_queue *queue, uint32_t step, struct _cl_event **event, char *why) {
  cl_int error = CL_SUCCESS;
  CALL(error, part, clEnqueueMLOpQCOM, queue, part->operators[step], part->set, 0, NULL, event)
  return error == CL_SUCCESS ? 0 : fail(why, plan.steps[step].name, error);
}

/* Whether a layer before this one wrote a value, or read it, so that it is in CLML's layout already. */
static int is_there(uint32_t at, uint32_t step) {
  for (uint32_t i = 0; i < step; ++i)
    for (uint32_t k = 0; is_layer(i) && k < plan.steps[i].count; ++k)
      if (argument(i, k) == at) return 1;
  return 0;
}

static int copy(clml_part *part, struct _cl_command_queue *queue, uint32_t at, int is_behind, struct _cl_event **event, char *why) {
  const tensor *one = &part->tensors[at];
  cl_ml_tensor_qcom from = is_behind ? one->best : one->plain, to = is_behind ? one->plain : one->best;
  cl_mem source = is_behind ? one->memory : part->values[at], target = is_behind ? part->values[at] : one->memory;
  cl_int error = CL_SUCCESS;
  CALL(error, part, clEnqueueCopyMLTensorDataQCOM, queue, from, source, to, target, 0, NULL, event)
  return error == CL_SUCCESS ? 0 : fail(why, "clEnqueueCopyMLTensorDataQCOM", error);
}

int clml_enqueue_copies(clml_part *part, struct _cl_command_queue *queue, uint32_t step, int is_behind, struct _cl_event **events, char *why) {
  const uint32_t first = is_behind ? plan.steps[step].count - 1 : 0, end = is_behind ? plan.steps[step].count : inputs_of(step);
  for (uint32_t k = first; k < end; ++k) {
    const uint32_t at = argument(step, k);
    if (!part->tensors[at].plain || (!is_behind && is_there(at, step))) continue;
    if (copy(part, queue, at, is_behind, events ? &events[is_behind ? 2 : k] : NULL, why)) return -1;
  }
  return 0;
}

int clml_launch(clml_part *part, struct _cl_command_queue *queue, struct _cl_recording_qcom *recording) {
  cl_int error = CL_SUCCESS;
  CALL(error, part, clEnqueueRecordingMLOpQCOM, queue, (void *)recording, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, NULL)
  return error;
}
