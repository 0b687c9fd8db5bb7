/* A plan written by hand, with kernels that use everything that TVM's may: parallel loops within each other, workspaces, errors. */
#define _GNU_SOURCE
#include "clock.h"
#include "plan.h"
#include "pool.h"

#include <sched.h>
#include <string.h>

extern int (*const __TVMBackendParallelLaunch)(pool_task, void *, int);
extern void *(*const __TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern int (*const __TVMBackendFreeWorkspace)(int, int, void *);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count);

#define SIZE 1000

static const float *floats(const plan_any *argument) { return ((plan_tensor *)argument->value.pointer)->data; }
static float *writable(const plan_any *argument) { return ((plan_tensor *)argument->value.pointer)->data; }

atomic_int cpu_of_task[TVMFLOW_MAX_THREADS]; /* of the last addition */
atomic_int add_tasks;                        /* into which it was divided */
atomic_int add_ns;                           /* that each addition takes at least, divided by its tasks */

struct loop {
  const float *a, *b;
  float *y;
};

static int inner(int task, pool_group *group, void *data) {
  (void)task;
  int *count = data;
  *count += group->num_task;
  return 0;
}

/* y = a + b, in parts; each part goes through a workspace, and starts a loop of its own. */
static int add_part(int task, pool_group *group, void *data) {
  struct loop *loop = data;
  const uint64_t until = now_ns() + (uint64_t)(add_ns / group->num_task);
  cpu_of_task[task] = sched_getcpu();
  add_tasks = group->num_task;
  int first = SIZE * task / group->num_task, last = SIZE * (task + 1) / group->num_task, loops = 0;
  if (__TVMBackendParallelLaunch(inner, &loops, 0) || loops < 1) return -1;
  float *outer = __TVMBackendAllocWorkspace(1, 0, SIZE * sizeof(float), 2, 32);
  float *copy = __TVMBackendAllocWorkspace(1, 0, 2 * SIZE * sizeof(float), 2, 32);
  if (!outer || !copy || outer == copy) return -1;
  memcpy(outer, loop->a, SIZE * sizeof(float));
  memcpy(copy, outer, SIZE * sizeof(float));
  for (int i = first; i < last; ++i) loop->y[i] = copy[i] + loop->b[i];
  while (add_ns && now_ns() < until) continue;
  if (__TVMBackendFreeWorkspace(1, 0, copy) || __TVMBackendFreeWorkspace(1, 0, outer)) return -1;
  return 0;
}

static int add(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)result;
  struct loop loop = {floats(&arguments[0]), floats(&arguments[1]), writable(&arguments[2])};
  if (count != 3) return -1;
  return __TVMBackendParallelLaunch(add_part, &loop, 0);
}

static int fail_part(int task, pool_group *group, void *data) {
  (void)group;
  return ((const float *)data)[task] < 0 ? -1 : 0;
}

/* y = 2 a in one thread; a negative first value is an error, one of the others fails in its own thread without a word. */
static int twice(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)count, (void)result;
  const float *a = floats(&arguments[0]);
  if (a[0] < 0) {
    const char *parts[] = {"a[0] is ", NULL, "negative"};
    TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 3);
    return -1;
  }
  if (__TVMBackendParallelLaunch(fail_part, (void *)(uintptr_t)a, 0)) return -1;
  for (int i = 0; i < SIZE; ++i) writable(&arguments[1])[i] = 2 * a[i];
  return 0;
}

static const int64_t shape[] = {1, SIZE}, strides[] = {SIZE, 1};
_Alignas(64) static const float constants[SIZE] = {1, 2, 3};

/* input -> arena (+ constants) -> output 0; output 1 is a copy of the arena's value. */
static const plan_value values[] = {
    {PLAN_INPUT, 2, 32, 2, 0, 0, shape, strides},  {PLAN_CONSTANT, 2, 32, 2, 0, 0, shape, strides},
    {PLAN_ARENA, 2, 32, 2, 0, 64, shape, strides}, {PLAN_OUTPUT, 2, 32, 2, 0, 0, shape, strides},
    {PLAN_OUTPUT, 2, 32, 2, 1, 0, shape, strides},
};
static const uint32_t arguments[] = {0, 1, 2, 2, 3};
static const plan_step steps[] = {{add, "add", 0, 3, 0, 0, NULL}, {twice, "twice", 3, 2, 0, 0, NULL}};
static const plan_copy copies[] = {{2, 4, SIZE * sizeof(float)}};
static const tvmflow_tensor inputs[] = {{"x", shape, 2, TVMFLOW_FLOAT32, SIZE * sizeof(float)}};
static const tvmflow_tensor outputs[] = {
    {"y", shape, 2, TVMFLOW_FLOAT32, SIZE * sizeof(float)}, {"z", shape, 2, TVMFLOW_FLOAT32, SIZE * sizeof(float)}};

const plan_tables plan = {values, arguments, steps, copies, inputs, outputs, (const unsigned char *)constants, 5, 5, 2, 1, NULL, NULL, 0, NULL, NULL, NULL, NULL};
const tvmflow_api plan_api = {
    TVMFLOW_ABI_VERSION, sizeof(tvmflow_api), "by-hand", 1, 2, 2, 2, 64 + SIZE * sizeof(float), sizeof constants,
    tvmflow_input, tvmflow_output, tvmflow_create, tvmflow_run, tvmflow_destroy, tvmflow_last_error, tvmflow_set_profiling,
    tvmflow_profile_of, NULL, 0, tvmflow_top_k, 0, tvmflow_run_image, tvmflow_classify, NULL, tvmflow_create_on, NULL, tvmflow_create_on_gpu, tvmflow_processor_of, 2e-3, tvmflow_create_with_gpu,
    0, tvmflow_size_of, tvmflow_sizes_of, tvmflow_shape_of, tvmflow_run_sized, tvmflow_threads_of, 0, tvmflow_state_of, tvmflow_state_reset};

const tvmflow_api *tvmflow_network(void);
const tvmflow_api *tvmflow_network(void) { return &plan_api; }
