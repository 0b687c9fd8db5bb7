/* A network that hands its input out as it is: `scores`, the beginning of it, and `sample`, all of it. The test writes what images are to become. */
#include "plan.h"

#define SCORES 64
#define SIZE (1 << 20)

plan_image image;
unsigned char image_values[3 * 256 * 8];

static const int64_t shape[] = {1, SIZE}, strides[] = {SIZE, 1};
static int64_t scores_shape[] = {1, SCORES};
static const plan_value values[] = {
    {PLAN_INPUT, 1, 8, 2, 0, 0, shape, strides},
    {PLAN_OUTPUT, 1, 8, 2, 0, 0, scores_shape, strides},
    {PLAN_OUTPUT, 1, 8, 2, 1, 0, shape, strides},
};
static const uint32_t arguments[] = {0};
static const plan_step steps[] = {{0}};
static const plan_copy copies[] = {{0, 1, SCORES * 4}, {0, 2, SIZE}};
static const tvmflow_tensor inputs[] = {{"x", shape, 2, TVMFLOW_UINT8, SIZE}};
tvmflow_tensor outputs[] = {{"scores", scores_shape, 2, TVMFLOW_FLOAT32, SCORES * 4}, {"sample", shape, 2, TVMFLOW_UINT8, SIZE}};
static const char *const labels[] = {"zero", "one"};

const plan_tables plan = {values, arguments, steps, copies, inputs, outputs, (const unsigned char *)"", 3, 0, 0, 2, &image, NULL, 0, NULL, NULL, NULL, NULL};
const tvmflow_api plan_api = {
    TVMFLOW_ABI_VERSION, sizeof(tvmflow_api), "images", 1, 2, 0, 2, 0, 0,
    tvmflow_input, tvmflow_output, tvmflow_create, tvmflow_run, tvmflow_destroy, tvmflow_last_error, tvmflow_set_profiling,
    tvmflow_profile_of, labels, 2, tvmflow_top_k, 1, tvmflow_run_image, tvmflow_classify, NULL, tvmflow_create_on, NULL, tvmflow_create_on_gpu, tvmflow_processor_of, 2e-3, tvmflow_create_with_gpu,
    0, tvmflow_size_of, tvmflow_sizes_of, tvmflow_shape_of, tvmflow_run_sized, tvmflow_threads_of, 0, tvmflow_state_of, tvmflow_state_reset};

const tvmflow_api *tvmflow_network(void);
const tvmflow_api *tvmflow_network(void) {
  image.table = image_values;
  return &plan_api;
}
