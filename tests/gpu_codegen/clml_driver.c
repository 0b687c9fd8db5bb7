/* PoCL behind a driver that has CLML, computed on the CPU by the stand-in header's structures. CL_TENSOR_LAYOUT_OPTIMAL_QCOM is a head of 16 bytes, pixels,
 * and channels in fours and backwards, so that nothing is right that takes it for another layout.
 *
 * CLML_FAULT: "clFunction 3" fails the third call of a function; "lies" makes convolutions wrong. CLML_LOG: a file, with a line for each call.
 * CLML_VERSIONS: of the interface, "5 4 3 2 1" by default. CLML_RECORDS: if it is set, the driver records. */
#define _GNU_SOURCE
#include <CL/cl_qcom_ml_ops.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAILED -6
#define MOST 512
#define CL_MEM_SIZE 0x1102
#define CL_DEVICE_EXTENSIONS 0x1030
#define CL_QUEUE_RECORDABLE_QCOM 0x40000000

struct stand_in_tensor {
  cl_ml_tensor_desc_qcom is;
  int is_parameter;
};
struct stand_in_set {
  cl_uint count;
  cl_ml_tensor_memory_desc_qcom of[MOST];
};
struct stand_in_cache {
  unsigned tuned;
};
typedef enum { CONVOLUTION, POOL, SUM, ACTIVATION, DENSE, SOFTMAX } kind;
struct stand_in_operator {
  kind kind;
  cl_ml_tensor_qcom from[3], to;
  cl_ml_op_convolution_desc_qcom window;
  cl_ml_op_pooling_desc_qcom pool;
  int activation; /* 0: none */
};
struct _cl_recording_qcom {
  cl_command_queue queue;
  int is_open;
  unsigned count;
  cl_ml_op_qcom operators[MOST];
  cl_ml_tensor_mem_desc_set_qcom set;
};
static struct _cl_recording_qcom recordings[64]; /* the queue of recording i is &recordings[i] */
static unsigned recorders;

static void *real(const char *name) { return dlsym(dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL), name); }

static int begins(const char *name) {
  static char counted[128];
  static long count;
  const char *fault = getenv("CLML_FAULT"), *log = getenv("CLML_LOG");
  if (log) {
    FILE *file = fopen(log, "a");
    fprintf(file, "%s\n", name);
    fclose(file);
  }
  if (!fault || strncmp(fault, name, strlen(name)) || fault[strlen(name)] != ' ') return 1;
  if (strcmp(counted, fault)) strcpy(counted, fault), count = 0;
  return ++count != atol(fault + strlen(name) + 1);
}
#define BEGIN \
  if (!begins(__func__)) return FAILED

/* -- tensors -- */

static size_t width_of(const cl_ml_tensor_desc_qcom *is) { return is->data_type == CL_HALF_FLOAT ? 2 : 4; }
static size_t count_of(const cl_ml_tensor_desc_qcom *is) { return (size_t)is->n * is->c * is->h * is->w; }
static size_t size_of(const cl_ml_tensor_desc_qcom *is) {
  if (is->layout != CL_TENSOR_LAYOUT_OPTIMAL_QCOM) return count_of(is) * width_of(is);
  return 16 + (size_t)is->n * is->h * is->w * ((is->c + 3) / 4 * 4) * width_of(is);
}

/* Byte of an element. */
static size_t at(const cl_ml_tensor_desc_qcom *is, cl_ml_tensor_layout_qcom layout, cl_uint n, cl_uint c, cl_uint y, cl_uint x) {
  const cl_uint fours = (is->c + 3) / 4 * 4;
  if (layout == CL_TENSOR_LAYOUT_NCHW_QCOM) return ((((size_t)n * is->c + c) * is->h + y) * is->w + x) * width_of(is);
  return 16 + ((((size_t)n * is->h + y) * is->w + x) * fours + (fours - 1 - c)) * width_of(is);
}

static float get(const unsigned char *from, const cl_ml_tensor_desc_qcom *is) {
  float wide;
  _Float16 narrow;
  if (is->data_type == CL_FLOAT) return memcpy(&wide, from, 4), wide;
  return memcpy(&narrow, from, 2), (float)narrow;
}

static void put(unsigned char *to, const cl_ml_tensor_desc_qcom *is, float value) {
  const _Float16 narrow = (_Float16)value;
  if (is->data_type == CL_FLOAT)
    memcpy(to, &value, 4);
  else
    memcpy(to, &narrow, 2);
}

/* Numbers of a tensor in the order N, C, H, W, from bytes of a layout; or the other way round. */
static void unpack(const unsigned char *bytes, const cl_ml_tensor_desc_qcom *is, cl_ml_tensor_layout_qcom layout, float *numbers) {
  for (cl_uint n = 0; n < is->n; ++n)
    for (cl_uint c = 0; c < is->c; ++c)
      for (cl_uint y = 0; y < is->h; ++y)
        for (cl_uint x = 0; x < is->w; ++x) *numbers++ = get(bytes + at(is, layout, n, c, y, x), is);
}
static void pack(const float *numbers, const cl_ml_tensor_desc_qcom *is, unsigned char *bytes) {
  memset(bytes, 0x7e, size_of(is)); /* large numbers, or none at all, where nothing may be read */
  for (cl_uint n = 0; n < is->n; ++n)
    for (cl_uint c = 0; c < is->c; ++c)
      for (cl_uint y = 0; y < is->h; ++y)
        for (cl_uint x = 0; x < is->w; ++x) put(bytes + at(is, is->layout, n, c, y, x), is, *numbers++);
}

static cl_int load(cl_command_queue queue, cl_mem memory, const cl_ml_tensor_desc_qcom *is, float *numbers) {
  cl_int (*read)(cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, STAND_IN_WAITS);
  cl_int (*about)(cl_mem, cl_uint, size_t, void *, size_t *);
  size_t there = 0;
  *(void **)&read = real("clEnqueueReadBuffer");
  *(void **)&about = real("clGetMemObjectInfo");
  if (about(memory, CL_MEM_SIZE, sizeof there, &there, NULL) || there < size_of(is)) return -61;
  unsigned char *bytes = malloc(size_of(is));
  cl_int error = read(queue, memory, 1, 0, size_of(is), bytes, 0, NULL, NULL);
  if (!error) unpack(bytes, is, is->layout, numbers);
  free(bytes);
  return error;
}
static cl_int store(cl_command_queue queue, cl_mem memory, const cl_ml_tensor_desc_qcom *is, const float *numbers, cl_event *event) {
  cl_int (*write)(cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *, STAND_IN_WAITS);
  *(void **)&write = real("clEnqueueWriteBuffer");
  unsigned char *bytes = malloc(size_of(is));
  pack(numbers, is, bytes);
  cl_int error = write(queue, memory, 1, 0, size_of(is), bytes, 0, NULL, event); /* beyond its end: refused */
  free(bytes);
  return error;
}

static cl_int make(const cl_ml_tensor_desc_qcom *is, int is_parameter, cl_ml_tensor_qcom *made) {
  *made = calloc(1, sizeof **made);
  (*made)->is = *is;
  (*made)->is_parameter = is_parameter;
  return 0;
}
static cl_int clCreateMLTensorQCOM(cl_context in, const cl_ml_tensor_properties_qcom *p, const cl_ml_tensor_desc_qcom *is, cl_ml_tensor_qcom *made) {
  BEGIN;
  return in && !p ? make(is, -1, made) : -30;
}
static cl_int clCreateMLTensorWithUsageQCOM(cl_context in, const cl_ml_tensor_properties_qcom *p, const cl_ml_tensor_desc_qcom *is, cl_ml_tensor_usage_qcom usage,
                                            cl_ml_tensor_qcom *made) {
  BEGIN;
  if (!in || p || (is->num_dimensions == CL_TENSOR_UNUSED_QCOM) != (usage == CL_TENSOR_USAGE_UNUSED_QCOM)) return -30;
  return make(is, usage == CL_TENSOR_USAGE_PARAMETER_QCOM, made);
}
static cl_int clReleaseMLTensorQCOM(cl_ml_tensor_qcom tensor) {
  BEGIN;
  free(tensor);
  return 0;
}
static cl_int clGetMLTensorMemorySizeQCOM(cl_context in, cl_ml_tensor_qcom tensor, cl_uint *size) {
  BEGIN;
  return *size = (cl_uint)size_of(&tensor->is), in ? 0 : -30;
}
static cl_int clEnqueueWriteMLTensorDataQCOM(cl_command_queue queue, const void *from, cl_ml_tensor_layout_qcom layout, cl_ml_tensor_qcom to, cl_mem memory,
                                             cl_uint n, const cl_event *waits, cl_event *event) {
  BEGIN;
  if (n || waits || layout != CL_TENSOR_LAYOUT_NCHW_QCOM) return -30;
  float *numbers = malloc(count_of(&to->is) * sizeof *numbers);
  unpack(from, &to->is, layout, numbers);
  cl_int error = store(queue, memory, &to->is, numbers, event);
  free(numbers);
  return error;
}
static cl_int clEnqueueCopyMLTensorDataQCOM(cl_command_queue queue, cl_ml_tensor_qcom a, cl_mem from, cl_ml_tensor_qcom b, cl_mem to, cl_uint n,
                                            const cl_event *waits, cl_event *event) {
  BEGIN;
  if (n || waits || count_of(&a->is) != count_of(&b->is)) return -30;
  float *numbers = malloc(count_of(&a->is) * sizeof *numbers);
  cl_int error = load(queue, from, &a->is, numbers);
  if (!error) error = store(queue, to, &b->is, numbers, event);
  free(numbers);
  return error;
}

/* -- memory of tensors -- */

static cl_int clCreateMLTensorMemoryDescriptorSetQCOM(cl_ml_tensor_mem_desc_set_qcom *made) {
  BEGIN;
  return *made = calloc(1, sizeof **made), 0;
}
static cl_int clUpdateMLTensorMemoryDescriptorSetQCOM(cl_ml_tensor_mem_desc_set_qcom set, cl_uint count, const cl_ml_tensor_memory_desc_qcom *given) {
  BEGIN;
  if (count > MOST) return -30;
  set->count = count;
  memcpy(set->of, given, count * sizeof *given);
  return 0;
}
static cl_int clReleaseMLTensorMemoryDescriptorSetQCOM(cl_ml_tensor_mem_desc_set_qcom set) {
  BEGIN;
  free(set);
  return 0;
}
static cl_mem memory_of(cl_ml_tensor_mem_desc_set_qcom set, cl_ml_tensor_qcom tensor) {
  for (cl_uint i = 0; i < set->count; ++i)
    if (set->of[i].tensor == tensor) return set->of[i].memory;
  return NULL;
}

/* -- creating operators -- */

static int is_unused(cl_ml_tensor_qcom tensor) { return tensor && tensor->is.num_dimensions == CL_TENSOR_UNUSED_QCOM; }

/* Whether a tensor is one of this operator: floats of four axes in the best layout; what is uploaded is said to be a parameter (since version 4). */
static int fits(cl_ml_tensor_qcom tensor, cl_channel_type type, int is_parameter) {
  return tensor && tensor->is.data_type == type && tensor->is.layout == CL_TENSOR_LAYOUT_OPTIMAL_QCOM && tensor->is.num_dimensions == CL_TENSOR_DIMENSIONS_4D_QCOM &&
         (tensor->is_parameter < 0 || tensor->is_parameter == is_parameter);
}
static int arithmetic_fits(cl_arithmetic_mode_qcom mode, cl_channel_type type) {
  begins(mode == CL_ARITHMETIC_MODE_FP32_QCOM ? "fp32" : mode == CL_ARITHMETIC_MODE_FP16_QCOM ? "fp16" : "fp16_acc32");
  return (mode == CL_ARITHMETIC_MODE_FP32_QCOM) == (type == CL_FLOAT);
}
static int is_window(cl_uint from, cl_uint before, cl_uint behind, cl_uint size, cl_uint dilation, cl_uint stride, cl_uint to) {
  return (from + before + behind - dilation * (size - 1) - 1) / stride + 1 == to;
}
static cl_ml_op_qcom operator(kind kind, cl_ml_tensor_qcom a, cl_ml_tensor_qcom b, cl_ml_tensor_qcom c, cl_ml_tensor_qcom to) {
  cl_ml_op_qcom made = calloc(1, sizeof *made);
  made->kind = kind, made->from[0] = a, made->from[1] = b, made->from[2] = c, made->to = to;
  return made;
}

static cl_int convolution(const cl_ml_op_convolution_desc_qcom *how, cl_ml_tensor_qcom from, cl_ml_tensor_qcom weights, cl_ml_tensor_qcom bias,
                          cl_ml_tensor_qcom to, cl_ml_op_qcom *made) {
  const cl_channel_type type = from->is.data_type;
  const cl_ml_tensor_desc_qcom *w = &weights->is, *x = &from->is, *y = &to->is;
  const int is_depthwise = how->mode == CL_CONVOLUTION_MODE_DEPTHWISE_QCOM;
  if (!fits(from, type, 0) || !fits(weights, type, 1) || !fits(to, type, 0) || how->groups != 1 || how->dimensions != 4 || !arithmetic_fits(how->arithmetic, type)) return -30;
  if (!is_unused(bias) && (!fits(bias, type, 1) || bias->is.n != 1 || bias->is.c != y->c || bias->is.h != 1 || bias->is.w != 1)) return -31;
  if (is_depthwise ? w->n != 1 || w->c != x->c || y->c != x->c : w->n != y->c || w->c != x->c) return -32;
  if (!is_window(x->h, how->before[0], how->behind[0], w->h, how->dilation[0], how->strides[0], y->h)) return -33;
  if (!is_window(x->w, how->before[1], how->behind[1], w->w, how->dilation[1], how->strides[1], y->w)) return -34;
  *made = operator(CONVOLUTION, from, weights, is_unused(bias) ? NULL : bias, to);
  (*made)->window = *how;
  return 0;
}
static cl_int clCreateMLOpConvolutionForwardQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_convolution_desc_qcom *how, cl_ml_tensor_qcom from,
                                                 cl_ml_tensor_qcom weights, cl_ml_tensor_qcom bias, cl_ml_tensor_qcom to, cl_ml_op_qcom *made,
                                                 cl_ml_tuningcache_qcom cache) {
  BEGIN;
  return (void)cache, in && !p ? convolution(how, from, weights, bias, to, made) : -30;
}
static cl_int clCreateMLOpFusedConvolutionActivationForwardQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_convolution_desc_qcom *how,
                                                                const cl_ml_op_activation_desc_qcom *behind, cl_ml_tensor_qcom from, cl_ml_tensor_qcom weights,
                                                                cl_ml_tensor_qcom bias, cl_ml_tensor_qcom none, cl_ml_tensor_qcom to, cl_ml_op_qcom *made,
                                                                cl_ml_tuningcache_qcom cache) {
  BEGIN;
  (void)cache;
  if (!in || p || none || behind->nan != CL_PROPAGATE_NAN_QCOM || behind->arithmetic != how->arithmetic) return -30;
  cl_int error = convolution(how, from, weights, bias, to, made);
  if (!error) (*made)->activation = (int)behind->function;
  return error;
}
static cl_int clCreateMLOpActivationForwardQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_activation_desc_qcom *how, cl_ml_tensor_qcom from,
                                                cl_ml_tensor_qcom none, cl_ml_tensor_qcom to, cl_ml_op_qcom *made, cl_ml_tuningcache_qcom cache) {
  BEGIN;
  const cl_channel_type type = from->is.data_type;
  (void)cache;
  if (!in || p || !is_unused(none) || !fits(from, type, 0) || !fits(to, type, 0) || !arithmetic_fits(how->arithmetic, type)) return -30;
  *made = operator(ACTIVATION, from, NULL, NULL, to);
  (*made)->activation = (int)how->function;
  return 0;
}
static cl_int clCreateMLOpPoolingForwardQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_pooling_desc_qcom *how, cl_ml_tensor_qcom from,
                                             cl_ml_tensor_qcom none, cl_ml_tensor_qcom to, cl_ml_op_qcom *made, cl_ml_tuningcache_qcom cache) {
  BEGIN;
  const cl_ml_tensor_desc_qcom *x = &from->is, *y = &to->is;
  (void)cache;
  if (!in || p || !is_unused(none) || !fits(from, x->data_type, 0) || !fits(to, x->data_type, 0) || !arithmetic_fits(how->arithmetic, x->data_type)) return -30;
  if (!is_window(x->h, how->before[0], how->behind[0], how->window[0], 1, how->strides[0], y->h)) return -33;
  if (!is_window(x->w, how->before[1], how->behind[1], how->window[1], 1, how->strides[1], y->w)) return -34;
  *made = operator(POOL, from, NULL, NULL, to);
  (*made)->pool = *how;
  return 0;
}
static cl_int clCreateMLOpBinaryQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_binary_desc_qcom *how, cl_ml_tensor_qcom a, cl_ml_tensor_qcom b,
                                     cl_ml_tensor_qcom to, cl_ml_op_qcom *made, cl_ml_tuningcache_qcom cache) {
  BEGIN;
  const cl_channel_type type = a->is.data_type;
  (void)cache;
  if (!in || p || how->op != CL_TENSOR_OP_ADD_QCOM || !fits(a, type, 0) || !fits(b, type, 0) || !fits(to, type, 0) || !arithmetic_fits(how->arithmetic, type)) return -30;
  if (how->alpha.type != CL_FLOAT || how->alpha.value.f != 1.0f || how->beta.value.f != 1.0f || how->gamma.value.f != 0.0f) return -31;
  return *made = operator(SUM, a, b, NULL, to), count_of(&a->is) == count_of(&b->is) ? 0 : -32;
}
static cl_int clCreateMLOpFullyConnectedQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_fully_connected_desc_qcom *how, cl_ml_tensor_qcom from,
                                             cl_ml_tensor_qcom weights, cl_ml_tensor_qcom bias, cl_ml_tensor_qcom to, cl_ml_op_qcom *made,
                                             cl_ml_tuningcache_qcom cache) {
  BEGIN;
  const cl_channel_type type = from->is.data_type;
  const cl_ml_tensor_desc_qcom *w = &weights->is;
  (void)cache;
  if (!in || p || how->axis != 1 || how->transform != CL_FC_WEIGHT_TRANSFORM_TRANSPOSE_QCOM || !arithmetic_fits(how->arithmetic, type)) return -30;
  if (!fits(from, type, 0) || !fits(weights, type, 1) || !fits(bias, type, 1) || !fits(to, type, 0)) return -31;
  if (from->is.n != 1 || w->n != 1 || w->c != 1 || w->h != to->is.c || w->w != from->is.c || bias->is.c != to->is.c) return -32;
  return *made = operator(DENSE, from, weights, bias, to), 0;
}
static cl_int clCreateMLOpSoftmaxQCOM(cl_context in, const cl_ml_op_properties_qcom *p, const cl_ml_op_softmax_desc_qcom *how, cl_ml_tensor_qcom from,
                                      cl_ml_tensor_qcom to, cl_ml_op_qcom *made, cl_ml_tuningcache_qcom cache) {
  BEGIN;
  const cl_channel_type type = from->is.data_type;
  (void)cache;
  if (!in || p || how->algorithm != CL_SOFTMAX_ALGORITHM_ACCURATE_QCOM || how->mode != CL_SOFTMAX_MODE_SPATIAL_QCOM || !arithmetic_fits(how->arithmetic, type)) return -30;
  return *made = operator(SOFTMAX, from, NULL, NULL, to), fits(from, type, 0) && fits(to, type, 0) ? 0 : -31;
}
static cl_int clReleaseMLOpQCOM(cl_ml_op_qcom op) {
  BEGIN;
  free(op);
  return 0;
}

/* -- computing -- */

static float activated(int function, float value) {
  if (function && value < 0) value = 0;
  return function == CL_ACTIVATION_RELU6 && value > 6 ? 6 : value;
}

static void convolve(cl_ml_op_qcom op, float *const *from, float *to) {
  const cl_ml_tensor_desc_qcom *x = &op->from[0]->is, *w = &op->from[1]->is, *y = &op->to->is;
  const cl_ml_op_convolution_desc_qcom *how = &op->window;
  const int is_depthwise = how->mode == CL_CONVOLUTION_MODE_DEPTHWISE_QCOM;
  const int lies = getenv("CLML_FAULT") && !strcmp(getenv("CLML_FAULT"), "lies");
  for (cl_uint o = 0; o < y->c; ++o)
    for (cl_uint u = 0; u < y->h; ++u)
      for (cl_uint v = 0; v < y->w; ++v) {
        float sum = lies ? 1 : 0;
        for (cl_uint i = is_depthwise ? o : 0; i < (is_depthwise ? o + 1 : x->c); ++i)
          for (cl_uint r = 0; r < w->h; ++r)
            for (cl_uint s = 0; s < w->w; ++s) {
              const int64_t row = (int64_t)u * how->strides[0] + r * how->dilation[0] - how->before[0], column = (int64_t)v * how->strides[1] + s * how->dilation[1] - how->before[1];
              if (row < 0 || column < 0 || row >= x->h || column >= x->w) continue;
              const size_t weight = is_depthwise ? (size_t)o : (size_t)o * w->c + i;
              sum += from[0][((size_t)i * x->h + (size_t)row) * x->w + (size_t)column] * from[1][(weight * w->h + r) * w->w + s];
            }
        to[((size_t)o * y->h + u) * y->w + v] = activated(op->activation, sum + (from[2] ? from[2][o] : 0));
      }
}

static void pool(cl_ml_op_qcom op, const float *from, float *to) {
  const cl_ml_tensor_desc_qcom *x = &op->from[0]->is, *y = &op->to->is;
  const cl_ml_op_pooling_desc_qcom *how = &op->pool;
  const int is_max = how->mode == CL_POOLING_MODE_MAX_QCOM;
  for (cl_uint c = 0; c < y->c; ++c)
    for (cl_uint u = 0; u < y->h; ++u)
      for (cl_uint v = 0; v < y->w; ++v) {
        float found = is_max ? -INFINITY : 0;
        unsigned count = 0;
        for (cl_uint r = 0; r < how->window[0]; ++r)
          for (cl_uint s = 0; s < how->window[1]; ++s) {
            const int64_t row = (int64_t)u * how->strides[0] + r - how->before[0], column = (int64_t)v * how->strides[1] + s - how->before[1];
            if (row < 0 || column < 0 || row >= x->h || column >= x->w) continue;
            const float value = from[((size_t)c * x->h + (size_t)row) * x->w + (size_t)column];
            found = is_max ? (value > found ? value : found) : found + value;
            ++count;
          }
        *to++ = is_max ? found : found / (float)count;
      }
}

static void simple(cl_ml_op_qcom op, float *const *from, float *to) {
  const size_t count = count_of(&op->to->is), depth = count_of(&op->from[0]->is);
  float sum = 0, largest = -INFINITY;
  for (size_t i = 0; i < count && op->kind == SOFTMAX; ++i) largest = from[0][i] > largest ? from[0][i] : largest;
  for (size_t i = 0; i < count && op->kind == SOFTMAX; ++i) sum += expf(from[0][i] - largest);
  for (size_t i = 0; i < count; ++i) {
    if (op->kind == SUM) to[i] = from[0][i] + from[1][i];
    if (op->kind == ACTIVATION) to[i] = activated(op->activation, from[0][i]);
    if (op->kind == SOFTMAX) to[i] = expf(from[0][i] - largest) / sum;
    if (op->kind != DENSE) continue;
    to[i] = from[2][i];
    for (size_t k = 0; k < depth; ++k) to[i] += from[0][k] * from[1][i * depth + k];
  }
}

static cl_int compute(cl_command_queue queue, cl_ml_op_qcom op, cl_ml_tensor_mem_desc_set_qcom set, cl_event *event) {
  float *from[3] = {NULL, NULL, NULL}, *to = malloc(count_of(&op->to->is) * sizeof *to);
  cl_int error = memory_of(set, op->to) ? 0 : -38;
  for (int i = 0; i < 3 && op->from[i] && !error; ++i) {
    from[i] = malloc(count_of(&op->from[i]->is) * sizeof **from);
    error = memory_of(set, op->from[i]) ? load(queue, memory_of(set, op->from[i]), &op->from[i]->is, from[i]) : -38;
  }
  if (!error) {
    if (op->kind == CONVOLUTION)
      convolve(op, from, to);
    else if (op->kind == POOL)
      pool(op, from[0], to);
    else
      simple(op, from, to);
    error = store(queue, memory_of(set, op->to), &op->to->is, to, event);
  }
  for (int i = 0; i < 3; ++i) free(from[i]);
  free(to);
  return error;
}

static cl_recording_qcom recording_on(cl_command_queue queue) {
  for (unsigned i = 0; i < recorders; ++i)
    if ((void *)queue == (void *)&recordings[i]) return &recordings[i];
  return NULL;
}

static cl_int clEnqueueMLOpQCOM(cl_command_queue queue, cl_ml_op_qcom op, cl_ml_tensor_mem_desc_set_qcom set, cl_uint n, const cl_event *waits, cl_event *event) {
  BEGIN;
  cl_recording_qcom on = recording_on(queue);
  if (n || waits) return -30;
  if (!on) return compute(queue, op, set, event);
  if (!on->is_open || event || on->count == MOST) return -30;
  on->operators[on->count++] = op, on->set = set;
  return 0;
}

/* -- recordings -- */

static cl_command_queue make_queue(cl_context context, cl_device_id device, cl_bitfield how, cl_int *error) {
  cl_command_queue (*theirs)(cl_context, cl_device_id, cl_bitfield, cl_int *);
  *(void **)&theirs = real("clCreateCommandQueue");
  if (how != CL_QUEUE_RECORDABLE_QCOM) return theirs(context, device, how, error);
  return *error = recorders < 64 ? 0 : -5, recorders < 64 ? (void *)&recordings[recorders++] : NULL;
}
static cl_int free_queue(cl_command_queue queue) {
  cl_int (*theirs)(cl_command_queue);
  *(void **)&theirs = real("clReleaseCommandQueue");
  return recording_on(queue) ? 0 : theirs(queue);
}
static cl_recording_qcom clNewRecordingQCOM(cl_command_queue queue, cl_int *error) {
  if (!begins(__func__) || !recording_on(queue)) return *error = FAILED, NULL;
  memset(recording_on(queue), 0, sizeof *recordings);
  recording_on(queue)->is_open = 1;
  return *error = 0, recording_on(queue);
}
static cl_int clEndRecordingQCOM(cl_recording_qcom recording) {
  BEGIN;
  return recording->is_open ? (recording->is_open = 0) : -30;
}
static cl_int clReleaseRecordingQCOM(cl_recording_qcom recording) {
  BEGIN;
  return recording->count = 0, 0;
}
static cl_int clEnqueueRecordingQCOM(cl_command_queue queue, cl_recording_qcom recording) { return (void)queue, (void)recording, -30; /* of kernels alone */ }
static cl_int clEnqueueRecordingMLOpQCOM(cl_command_queue queue, cl_recording_qcom recording, size_t a, const void *b, size_t c, const void *d, size_t e, const void *f,
                                         size_t g, const void *h, size_t i, const void *j, size_t k, const void *l, size_t m, const void *n, cl_uint o,
                                         const cl_event *p, cl_event *event) {
  BEGIN;
  if (a || b || c || d || e || f || g || h || i || j || k || l || m || n || o || p || event || recording->is_open || !recording->count) return -30;
  cl_int error = 0;
  for (unsigned at = 0; at < recording->count && !error; ++at) error = compute(queue, recording->operators[at], recording->set, NULL);
  return error;
}

/* -- what was found by trying: "tuned" and how many operators -- */

static cl_int clCreateMLTuningCacheQCOM(cl_ml_tuningcache_qcom *made) {
  BEGIN;
  return *made = calloc(1, sizeof **made), 0;
}
static cl_int clLoadMLTuningCacheQCOM(cl_ml_tuningcache_qcom cache, size_t size, const unsigned char *from) {
  BEGIN;
  return size == 5 && !memcmp(from, "tuned", 5) ? (cache->tuned = 1, 0) : -30;
}
static cl_int clSaveMLTuningCacheQCOM(cl_ml_tuningcache_qcom cache, size_t size, unsigned char *to, size_t *needed) {
  BEGIN;
  if (size) memcpy(to, "tuned", size);
  return *needed = cache->tuned ? 5 : 0, 0;
}
static cl_int clReleaseMLTuningCacheQCOM(cl_ml_tuningcache_qcom cache) {
  BEGIN;
  free(cache);
  return 0;
}
static cl_int clTuneMLOpQCOM(cl_command_queue queue, cl_ml_op_qcom op, cl_ml_tensor_mem_desc_set_qcom set, cl_ml_tuningcache_qcom cache, cl_event *event) {
  BEGIN;
  if (event) return -30;
  cache->tuned = 1;
  return compute(queue, op, set, NULL);
}

/* -- what the library has -- */

#define FILL(table) \
  table.clReleaseMLTensorQCOM = clReleaseMLTensorQCOM, table.clGetMLTensorMemorySizeQCOM = clGetMLTensorMemorySizeQCOM, \
  table.clEnqueueWriteMLTensorDataQCOM = clEnqueueWriteMLTensorDataQCOM, table.clEnqueueCopyMLTensorDataQCOM = clEnqueueCopyMLTensorDataQCOM, \
  table.clCreateMLTensorMemoryDescriptorSetQCOM = clCreateMLTensorMemoryDescriptorSetQCOM, \
  table.clUpdateMLTensorMemoryDescriptorSetQCOM = clUpdateMLTensorMemoryDescriptorSetQCOM, \
  table.clReleaseMLTensorMemoryDescriptorSetQCOM = clReleaseMLTensorMemoryDescriptorSetQCOM, table.clEnqueueMLOpQCOM = clEnqueueMLOpQCOM, \
  table.clReleaseMLOpQCOM = clReleaseMLOpQCOM, table.clCreateMLTuningCacheQCOM = clCreateMLTuningCacheQCOM, \
  table.clLoadMLTuningCacheQCOM = clLoadMLTuningCacheQCOM, table.clSaveMLTuningCacheQCOM = clSaveMLTuningCacheQCOM, \
  table.clReleaseMLTuningCacheQCOM = clReleaseMLTuningCacheQCOM, table.clTuneMLOpQCOM = clTuneMLOpQCOM, \
  table.clCreateMLOpConvolutionForwardQCOM = clCreateMLOpConvolutionForwardQCOM, \
  table.clCreateMLOpFusedConvolutionActivationForwardQCOM = clCreateMLOpFusedConvolutionActivationForwardQCOM, \
  table.clCreateMLOpActivationForwardQCOM = clCreateMLOpActivationForwardQCOM, table.clCreateMLOpPoolingForwardQCOM = clCreateMLOpPoolingForwardQCOM, \
  table.clCreateMLOpBinaryQCOM = clCreateMLOpBinaryQCOM, \
  table.clCreateMLOpFullyConnectedQCOM = clCreateMLOpFullyConnectedQCOM, table.clCreateMLOpSoftmaxQCOM = clCreateMLOpSoftmaxQCOM, \
  table.clEnqueueRecordingMLOpQCOM = clEnqueueRecordingMLOpQCOM

static const char *versions_of_this(void) { return getenv("CLML_VERSIONS") ? getenv("CLML_VERSIONS") : "5 4 3 2 1"; }

cl_int clQueryMLInterfaceVersionsQCOM(cl_int *major, cl_int *minor, cl_uint most, cl_uint *count) {
  BEGIN;
  const char *versions = versions_of_this();
  if (count) *count = (cl_uint)(strlen(versions) + 1) / 2;
  for (cl_uint i = 0; i < most && major && minor; ++i) major[i] = versions[2 * i] - '0', minor[i] = 0;
  return 0;
}

cl_int clGetMLInterfaceQCOM(void **found, cl_int major, cl_int minor) {
  BEGIN;
  static CLMLInterfaceV1QCOM first;
  static CLMLInterfaceV2QCOM second;
  static CLMLInterfaceV3QCOM third;
  static CLMLInterfaceV4QCOM fourth;
  static CLMLInterfaceV5QCOM fifth;
  FILL(first), FILL(second), FILL(third), FILL(fourth), FILL(fifth);
  first.clCreateMLTensorQCOM = second.clCreateMLTensorQCOM = third.clCreateMLTensorQCOM = clCreateMLTensorQCOM;
  fourth.clCreateMLTensorWithUsageQCOM = fifth.clCreateMLTensorWithUsageQCOM = clCreateMLTensorWithUsageQCOM;
  void *const tables[] = {&first, &second, &third, &fourth, &fifth};
  if (minor || major < 1 || major > 5 || !strchr(versions_of_this(), '0' + major)) return -30;
  return *found = tables[major - 1], 0;
}

static cl_int info(cl_device_id device, cl_uint what, size_t size, void *to, size_t *n) {
  cl_int (*theirs)(cl_device_id, cl_uint, size_t, void *, size_t *);
  *(void **)&theirs = real("clGetDeviceInfo");
  const cl_int error = theirs(device, what, size, to, n);
  if (error || what != CL_DEVICE_EXTENSIONS || !to) return error;
  strncat(to, getenv("CLML_RECORDS") ? " cl_qcom_ml_ops cl_qcom_recordable_queues" : " cl_qcom_ml_ops", size - strlen(to) - 1);
  return 0;
}

#define IS(function) \
  if (!strcmp(name, #function)) return (void *)function
void *loadOpenCLPointer(const char *name) {
  IS(clQueryMLInterfaceVersionsQCOM);
  IS(clGetMLInterfaceQCOM);
  IS(clNewRecordingQCOM);
  IS(clEndRecordingQCOM);
  IS(clReleaseRecordingQCOM);
  IS(clEnqueueRecordingQCOM);
  if (!strcmp(name, "clGetDeviceInfo")) return (void *)info;
  if (!strcmp(name, "clCreateCommandQueue")) return (void *)make_queue;
  return !strcmp(name, "clReleaseCommandQueue") ? (void *)free_queue : real(name);
}
