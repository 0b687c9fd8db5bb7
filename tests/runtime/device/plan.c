/* A plan whose accelerator adds its image to the input in one launch and doubles that in a second one; a kernel negates the sum. */
#include "plan.h"

#define SIZE 64

static int negate(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)result;
  const signed char *x = ((plan_tensor *)arguments[0].value.pointer)->data;
  signed char *y = ((plan_tensor *)arguments[1].value.pointer)->data;
  if (count != 2) return -1;
  for (int i = 0; i < SIZE; ++i) y[i] = (signed char)-x[i];
  return 0;
}

static const int64_t shape[] = {1, SIZE}, strides[] = {SIZE, 1};
/* An image of 8 bytes, then the code: two launches of one and two instructions, whose first byte says what to do. */
_Alignas(64) static const unsigned char constants[64 + 4096 + 32] = {1, 2, 3, 4, 5, 6, 7, 8, [64] = 'a', [64 + 4096] = 'd', [64 + 4096 + 16] = 'f'};

static const plan_value values[] = {
    {PLAN_INPUT, 0, 8, 2, 0, 0, shape, strides}, {PLAN_ARENA, 0, 8, 2, 0, 0, shape, strides},
    {PLAN_OUTPUT, 0, 8, 2, 0, 0, shape, strides}, {PLAN_OUTPUT, 0, 8, 2, 1, 0, shape, strides},
};
static const uint32_t arguments[] = {0, 1, 2, 1, 3};
static const plan_step steps[] = {{(plan_kernel)0, "part 0", 0, 3, 1, 0, NULL}, {negate, "negate", 3, 2, 0, 0, NULL}};
static const plan_copy copies[] = {{0, 0, 0}};
static const tvmflow_tensor inputs[] = {{"x", shape, 2, TVMFLOW_INT8, SIZE}};
static const tvmflow_tensor outputs[] = {{"y", shape, 2, TVMFLOW_INT8, SIZE}, {"z", shape, 2, TVMFLOW_INT8, SIZE}};
static const plan_launch launches[] = {{0, 1}, {4096, 2}};
/* x at 0, the sum at 64, its double at 128, the image at 4096. */
static const plan_span spans[] = {{0, SIZE}, {64, SIZE}, {128, SIZE}};
static const plan_program programs[] = {{{0, 8}, {64, 4096 + 32}, 4096, 8192, launches, spans, 2, 1, 2}};

const plan_tables plan = {values, arguments, steps, copies, inputs, outputs, constants, 4, 5, 2, 0, NULL, programs, 1, NULL, NULL, NULL, NULL};
const tvmflow_api plan_api = {
    TVMFLOW_ABI_VERSION, sizeof(tvmflow_api), "by-hand", 1, 2, 2, 2, SIZE, sizeof constants,
    tvmflow_input, tvmflow_output, tvmflow_create, tvmflow_run, tvmflow_destroy, tvmflow_last_error, tvmflow_set_profiling,
    tvmflow_profile_of, NULL, 0, tvmflow_top_k, 0, tvmflow_run_image, tvmflow_classify, "by_hand", tvmflow_create_on, NULL, tvmflow_create_on_gpu, tvmflow_processor_of, 2e-3, tvmflow_create_with_gpu,
    0, tvmflow_size_of, tvmflow_sizes_of, tvmflow_shape_of, tvmflow_run_sized, tvmflow_threads_of, 0, tvmflow_state_of, tvmflow_state_reset};
