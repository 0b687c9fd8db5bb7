/* A plan written by hand whose runs choose batch and length: four buckets over one constant. */
#include "plan.h"

/* x (batch, length, 2) -> y (batch, length): the sum of both and a constant, through the arena; z (batch, half of length): every second y. */
static int add(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)result;
  const plan_tensor *x = arguments[0].value.pointer, *bias = arguments[1].value.pointer, *y = arguments[2].value.pointer;
  if (count != 3 || x->shape[2] != 2 || y->shape[0] != x->shape[0] || y->shape[1] != x->shape[1]) return -1;
  for (int64_t i = 0; i < x->shape[0] * x->shape[1]; ++i)
    ((int32_t *)y->data)[i] = ((int32_t *)x->data)[2 * i] + ((int32_t *)x->data)[2 * i + 1] + *(int32_t *)bias->data;
  return 0;
}

static int every_second(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)result;
  const plan_tensor *y = arguments[0].value.pointer, *z = arguments[1].value.pointer;
  if (count != 2 || z->shape[1] != (y->shape[1] + 1) / 2) return -1;
  for (int64_t n = 0; n < z->shape[0]; ++n)
    for (int64_t i = 0; i < z->shape[1]; ++i) ((int32_t *)z->data)[n * z->shape[1] + i] = ((int32_t *)y->data)[n * y->shape[1] + 2 * i];
  return 0;
}

static const int32_t constants[] = {100};
static const int64_t one[] = {1};
static const uint32_t arguments[] = {0, 1, 2, 2, 3};
static const plan_step steps[] = {{add, "add", 0, 3, 0, 0, NULL}, {every_second, "every_second", 3, 2, 0, 0, NULL}};
static const plan_copy copies[] = {{0, 0, 0}};
enum { SHORT = 3, LONG = 7, FEW = 1, MANY = 4 };

#define BUCKET(name, plan_sizes_of, batch, length)                                                                                       \
  static const int64_t name##_x[] = {batch, length, 2}, name##_y[] = {batch, length}, name##_z[] = {batch, (length + 1) / 2};            \
  static const plan_value name##_values[] = {                                                                                            \
      {PLAN_INPUT, 0, 32, 3, 0, 0, name##_x, name##_x},                                                                                  \
      {PLAN_CONSTANT, 0, 32, 1, 0, 0, one, one},                                                                                         \
      {PLAN_OUTPUT, 0, 32, 2, 0, 0, name##_y, name##_y},                                                                                 \
      {PLAN_OUTPUT, 0, 32, 2, 1, 0, name##_z, name##_z}};                                                                                \
  static const tvmflow_tensor name##_inputs[] = {{"x", name##_x, 3, TVMFLOW_INT32, (batch) * (length)*8}};                               \
  static const tvmflow_tensor name##_outputs[] = {{"y", name##_y, 2, TVMFLOW_INT32, (batch) * (length)*4},                               \
                                                  {"z", name##_z, 2, TVMFLOW_INT32, (batch) * ((length + 1) / 2) * 4}};                  \
  const plan_tables name = {name##_values, arguments, steps, copies, name##_inputs, name##_outputs, (const unsigned char *)constants, 4, \
                            5, 2, 0, NULL, NULL, 0, NULL, plan_sizes_of, NULL, NULL}

extern const plan_tables few_short, few_long, many_short;
static const int64_t sizes_few_short[] = {FEW, SHORT}, sizes_few_long[] = {FEW, LONG}, sizes_many_short[] = {MANY, SHORT}, sizes_all[] = {MANY, LONG};
static const plan_bucket buckets[] = {{&few_short, sizes_few_short}, {&few_long, sizes_few_long}, {&many_short, sizes_many_short}, {&plan, sizes_all}};
static const int64_t batches[] = {FEW, MANY}, lengths[] = {SHORT, LONG};
static const tvmflow_size sizes[] = {{"batch", batches, 2}, {"length", lengths, 2}};
static const plan_axis axes[] = {{0, 0, 0, 1, 0, 1}, {0, 1, 1, 1, 0, 1}, {1, 0, 0, 1, 0, 1}, {1, 1, 1, 1, 0, 1}, {2, 0, 0, 1, 0, 1}, {2, 1, 1, 1, 0, 2}};
static const unsigned char pad[] = {7, 0, 0, 0};
static const unsigned char *const pads[] = {pad};
static const plan_sizes all_sizes = {sizes, axes, buckets, pads, 6, 4};

BUCKET(few_short, NULL, FEW, SHORT);
BUCKET(few_long, NULL, FEW, LONG);
BUCKET(many_short, NULL, MANY, SHORT);
BUCKET(plan, &all_sizes, MANY, LONG);

const tvmflow_api plan_api = {
    TVMFLOW_ABI_VERSION, sizeof(tvmflow_api), "by-hand", 1, 2, 2, 1, 64, sizeof constants,
    tvmflow_input, tvmflow_output, tvmflow_create, tvmflow_run, tvmflow_destroy, tvmflow_last_error, tvmflow_set_profiling,
    tvmflow_profile_of, NULL, 0, tvmflow_top_k, 0, tvmflow_run_image, tvmflow_classify, NULL, tvmflow_create_on, NULL, tvmflow_create_on_gpu, tvmflow_processor_of, 2e-3, tvmflow_create_with_gpu,
    2, tvmflow_size_of, tvmflow_sizes_of, tvmflow_shape_of, tvmflow_run_sized, tvmflow_threads_of, 0, tvmflow_state_of, tvmflow_state_reset};
