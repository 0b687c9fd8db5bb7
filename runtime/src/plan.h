/* The tables that the compiler generates for a network, and the types of TVM's kernel calls. */
#ifndef TVMFLOW_PLAN_H
#define TVMFLOW_PLAN_H

#include "tvmflow.h"

/* Return the bytes of an element. */
static inline uint32_t plan_width_of(tvmflow_dtype dtype) {
  static const uint8_t widths[] = {4, 2, 2, 1, 1, 4, 8, 1};
  return widths[dtype];
}

/* DLTensor of DLPack and TVMFFIAny of TVM's FFI: layouts are part of their ABI. */
typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape;
  const int64_t *strides;
  uint64_t byte_offset;
} plan_tensor;

typedef struct {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t integer;
    void *pointer;
  } value;
} plan_any;

enum { PLAN_ANY_NONE = 0, PLAN_ANY_TENSOR = 7, PLAN_DEVICE_CPU = 1 };

typedef int (*plan_kernel)(void *self, const plan_any *arguments, int32_t count, plan_any *result);

typedef enum { PLAN_INPUT, PLAN_OUTPUT, PLAN_CONSTANT, PLAN_ARENA } plan_place;

/* offset: in the input, output, constants or arena, bytes. */
typedef struct {
  uint8_t place, code, bits, ndim;
  uint32_t index;
  uint64_t offset;
  const int64_t *shape, *strides;
} plan_value;

/* arguments: the first of `count` positions in plan.arguments. program: of the accelerator, counted from 1, in place of a kernel; or 0.
 * loops: the extents of the kernel's parallel loops, in the order of execution; none if unknown. */
typedef struct {
  plan_kernel kernel;
  const char *name;
  uint32_t arguments, count;
  uint32_t program;
  uint32_t loop_count;
  const uint32_t *loops;
} plan_step;

typedef struct {
  uint64_t offset, size;
} plan_span;

typedef struct {
  uint64_t offset; /* in the code, bytes */
  uint32_t count;  /* instructions */
} plan_launch;

/* A program of the accelerator. image, code: in the constants; the image is at image_at in the program's memory. */
typedef struct {
  plan_span image, code;
  uint64_t image_at, memory_size;
  const plan_launch *launches;
  const plan_span *spans; /* of inputs, then outputs, in the program's memory */
  uint32_t launch_count, input_count, output_count;
} plan_program;

typedef struct {
  uint32_t from, to;
  uint64_t size;
} plan_copy;

typedef enum { PLAN_NEAREST, PLAN_BILINEAR, PLAN_BICUBIC } plan_filter;

/* The conversion of an image to a sample of the network's input. resize: pixels of the shorter side before the center crop; 0: the image is
 * stretched to width x height. table: the result of each of 256 values for each channel, in elements of `element` bytes.
 * The steps are in elements; sample_size in bytes. */
typedef struct {
  uint32_t width, height, channels, resize;
  plan_filter filter;
  uint32_t is_bgr, element;
  size_t channel_step, row_step, column_step, sample_size;
  const void *table;
} plan_image;

/* A kernel of the GPU: step i of the plan runs kernel i, whose arguments are the step's. code: a program in source or binary, with the
 * function `name`. */
typedef struct {
  const char *name;
  const void *code;
  size_t code_size; /* bytes */
  uint32_t groups[3], group_size[3];
} plan_gpu_kernel;

struct gpu_functions;

/* A texture: vectors of four in a row, and rows; 0 if the value is a buffer. */
typedef struct {
  uint32_t width, height;
} plan_texture;

/* A layer that CLML, Qualcomm's library for Adreno, computes in place of a kernel: arguments of its step are its inputs, weights and bias where it has
 * them, and its output. padding: top, left, bottom, right; window: of a pool; the others height and width. */
typedef enum {
  PLAN_LAYER_NONE,
  PLAN_LAYER_CONVOLUTION,
  PLAN_LAYER_DEPTHWISE_CONVOLUTION,
  PLAN_LAYER_MAX_POOL,
  PLAN_LAYER_AVERAGE_POOL,
  PLAN_LAYER_ADDITION,
  PLAN_LAYER_ACTIVATION,
  PLAN_LAYER_DENSE,
  PLAN_LAYER_SOFTMAX
} plan_layer_kind;
enum { PLAN_NO_ACTIVATION, PLAN_RELU, PLAN_RELU6 };
enum { PLAN_FLOAT32, PLAN_FLOAT16, PLAN_FLOAT16_SUMS_IN_FLOAT32 };

typedef struct {
  uint8_t kind, activation, arithmetic;
  uint32_t padding[4], strides[2], dilation[2], window[2];
} plan_layer;

/* The kernels of the GPU. textures: one per value, or NULL if all are buffers. layers: one per step, of no kind for those that a kernel computes; inner:
 * one per value, whether only layers touch it; both NULL if kernels compute all. */
typedef struct {
  const struct gpu_functions *functions;
  const plan_gpu_kernel *kernels; /* one per step */
  const plan_texture *textures;
  const plan_layer *layers;
  const uint8_t *inner;
} plan_gpu;

struct plan_tables;

/* A dynamic axis of a tensor (inputs, then outputs), with (size * times + plus) / over elements, rounded up. */
typedef struct {
  uint32_t tensor, axis, size;
  int64_t times, plus, over;
} plan_axis;

/* An input that an instance carries from run to run, and the output that it is. initial: what it begins with, repeated; NULL: zeros. */
typedef struct {
  uint32_t input, output;
  const unsigned char *initial;
  size_t initial_size; /* divides the size of the input */
} plan_state;

/* The network at one of its sizes, with its own steps and values; constants are shared. */
typedef struct {
  const struct plan_tables *plan;
  const int64_t *sizes;
} plan_bucket;

/* The dynamic sizes. buckets: the smallest first, the last is `plan`; pads: the padding element of each input. */
typedef struct {
  const tvmflow_size *sizes;
  const plan_axis *axes;
  const plan_bucket *buckets;
  const unsigned char *const *pads;
  uint32_t axis_count, bucket_count;
} plan_sizes;
#define PLAN_MAX_AXES 8 /* of a tensor of a network with dynamic sizes */

typedef struct plan_tables {
  const plan_value *values;
  const uint32_t *arguments;
  const plan_step *steps;
  const plan_copy *copies;
  const tvmflow_tensor *inputs, *outputs;
  const unsigned char *constants;
  uint32_t value_count, argument_count, step_count, copy_count;
  const plan_image *image; /* NULL: the network takes no images */
  const plan_program *programs;
  uint32_t program_count;
  const plan_gpu *gpu; /* NULL: the CPU, perhaps with an accelerator, runs all steps */
  const plan_sizes *sizes; /* NULL: all inputs have one shape */
  const plan_state *states; /* as many as plan_api.states */
  const char *const *flags; /* of /proc/cpuinfo, that the processor needs, then NULL; NULL: none */
} plan_tables;

extern const plan_tables plan;
extern const tvmflow_api plan_api;

tvmflow_status tvmflow_input(uint32_t i, tvmflow_tensor *info);
tvmflow_status tvmflow_output(uint32_t i, tvmflow_tensor *info);
tvmflow_status tvmflow_create(const tvmflow_options *options, tvmflow_instance **instance);
tvmflow_status tvmflow_run(tvmflow_instance *instance, const void *const *inputs, void *const *outputs);
tvmflow_status tvmflow_create_on(const tvmflow_options *options, const tvmflow_driver *driver, tvmflow_instance **instance);
tvmflow_status tvmflow_create_on_gpu(const tvmflow_options *options, const tvmflow_gpu *gpu, tvmflow_instance **instance);
tvmflow_status tvmflow_create_with_gpu(const tvmflow_options *options, const tvmflow_api *other, const tvmflow_gpu *gpu, const void *const *sample,
                                       tvmflow_instance **instance);
tvmflow_status tvmflow_processor_of(const tvmflow_instance *instance, tvmflow_processor *found);
tvmflow_status tvmflow_size_of(uint32_t i, tvmflow_size *info);
tvmflow_status tvmflow_sizes_of(const int64_t *const *shapes, int64_t *sizes);
tvmflow_status tvmflow_shape_of(int is_output, uint32_t i, const int64_t *sizes, int64_t *shape);
tvmflow_status tvmflow_run_sized(tvmflow_instance *instance, const int64_t *sizes, const void *const *inputs, void *const *outputs);
tvmflow_status tvmflow_state_of(uint32_t i, uint32_t *input, uint32_t *output);
tvmflow_status tvmflow_state_reset(tvmflow_instance *instance);
uint32_t tvmflow_threads_of(tvmflow_instance *instance);
void tvmflow_destroy(tvmflow_instance *instance);
const char *tvmflow_last_error(void);
tvmflow_status tvmflow_set_profiling(tvmflow_instance *instance, int on);
tvmflow_status tvmflow_profile_of(const tvmflow_instance *instance, uint32_t i, tvmflow_profile *found);
tvmflow_status tvmflow_top_k(const float *scores, uint32_t count, uint32_t k, uint32_t *indices);
tvmflow_status tvmflow_run_image(tvmflow_instance *instance, const tvmflow_image *images, void *const *outputs);
tvmflow_status tvmflow_classify(tvmflow_instance *instance, const tvmflow_image *image, uint32_t k, uint32_t *indices, float *probabilities);

#endif
