/* An instance of the network: its memory, its threads, and the walk over the plan. */
#define _GNU_SOURCE
#include "clock.h"
#include "device.h"
#include "fallback.h"
#include "image.h"
#include "network_gpu.h"
#include "plan.h"
#include "pool.h"
#include "scores.h"
#include "sizes.h"
#include "teams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_WORKSPACES 16
#define POPULATED ((size_t)64 << 10) /* bytes from which on it pays to ask for all pages at once */
#define POPULATE_WRITE 23                /* advice of Linux 5.14, which headers of some systems do not know */
#define HUGE_PAGE ((size_t)2 << 20) /* bytes, of x86-64 and arm64 with pages of 4 KB */
#define ERROR_SIZE 512
#define FEW_PIXELS 4096 /* of an image: threads are not worth their hand-overs */

typedef struct {
  void *memory;
  size_t size;
  int in_use;
} workspace;

/* Where the kernels find an input or output. own: memory of ours, for what is not aligned or not given; made when first needed. */
typedef struct {
  void *own;
  unsigned char *used;
} place;

struct tvmflow_instance {
  tvmflow_options options;
  pool threads;
  device_part device; /* all zero where the network has none */
  gpu_part *gpu;      /* NULL where the CPU walks over the plan */
  gpu_identity is;
  fallback other;     /* the library for a GPU that computes while it can */
  const void **gpu_inputs; /* where its inputs, then outputs, are in a run */
  pthread_mutex_t mutex;
  unsigned char *arena;
  const plan_tables *now; /* of the bucket that runs; `plan` itself where there are none */
  plan_tensor *tensors;  /* one per value of its plan; those of all buckets lie one behind the other, and begin at all_tensors */
  plan_any *arguments;   /* one per argument of a step, likewise */
  plan_tensor *all_tensors;
  plan_any *all_arguments;
  teams *teams;          /* one per bucket */
  teams_step *team_steps; /* of all buckets, one behind the other */
  teams *teams_now;      /* of the bucket that runs */
  uint32_t team;         /* of the step that runs */
  place *places;         /* of inputs, then outputs */
  const uint32_t *loops; /* of the step that runs: the extents of the parallel loops that it has not begun */
  uint32_t loop_count;
  int moved;             /* one of them, or the bucket, since the values were pointed at them */
  uint64_t *calls, *nanoseconds; /* one per step, and PROFILE_OTHERS; NULL where profiling was never on */
  int profiling;
  void *image_memory;    /* in which images are resized; of the largest so far */
  size_t image_size;
  float *scores;         /* of the first output, made when first needed */
  workspace workspaces[TVMFLOW_MAX_THREADS][MAX_WORKSPACES]; /* of each thread */
};

/* For whom this thread computes: TVM's kernels do not pass it on. */
static _Thread_local struct {
  tvmflow_instance *instance;
  uint32_t number;
  int in_loop;
  char error[ERROR_SIZE];
} current;

static void enter_worker(void *owner, uint32_t number) {
  current.instance = owner;
  current.number = number;
  current.in_loop = 1; /* a thread of the pool does nothing else */
}

/* Say what went wrong, with one word of it or NULL; returns the status. */
static tvmflow_status told(tvmflow_status status, const char *text, const char *word) {
  snprintf(current.error, ERROR_SIZE, text, word); /* all texts are ours */
  return status;
}

/* -- memory -- */

/* Have pages mapped at once that would be one fault each; where the system cannot, they come as they are touched. */
static void populate(void *memory, size_t size) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory & ~(page - 1);
  if (size >= POPULATED) madvise((void *)begin, (uintptr_t)memory + size - begin, POPULATE_WRITE);
}

static void *allocate(tvmflow_instance *instance, size_t size) {
  size_t rounded = (size + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT;
  if (rounded < size) return NULL;
  if (!rounded) rounded = TVMFLOW_ALIGNMENT;
  if (instance->options.allocate) return instance->options.allocate(instance->options.context, rounded, TVMFLOW_ALIGNMENT);
  void *memory = NULL;
  size_t rest = rounded % HUGE_PAGE, taken = rest > HUGE_PAGE / 2 && rounded < SIZE_MAX - HUGE_PAGE ? rounded - rest + HUGE_PAGE : rounded;
  size_t alignment = taken < HUGE_PAGE ? TVMFLOW_ALIGNMENT : HUGE_PAGE;
  if (posix_memalign(&memory, alignment, taken)) return NULL;
#ifdef MADV_HUGEPAGE
  if (alignment == HUGE_PAGE) madvise(memory, taken, MADV_HUGEPAGE); /* fewer faults and TLB misses; where it is refused, nothing is lost */
#endif
  populate(memory, rounded);
  return memory;
}

static void release(tvmflow_instance *instance, void *memory) {
  if (!memory) return;
  if (instance->options.release) instance->options.release(instance->options.context, memory);
  else free(memory);
}

/* -- what TVM's kernels call -- */

static void *take_workspace(int device_type, int device_id, uint64_t size, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  workspace *found = NULL, *room = NULL;
  for (workspace *at = current.instance->workspaces[current.number]; at < current.instance->workspaces[current.number] + MAX_WORKSPACES; ++at) {
    if (at->in_use) continue;
    if (at->size >= size && at->memory && (!found || at->size < found->size)) found = at;
    if (!room || at->size < room->size) room = at;
  }
  if (!found) {
    if (!room) return NULL;
    release(current.instance, room->memory);
    *room = (workspace){allocate(current.instance, size), size, 0};
    if (!room->memory) return room->size = 0, NULL;
    found = room;
  }
  found->in_use = 1;
  return found->memory;
}

static int free_workspace(int device_type, int device_id, void *memory) {
  (void)device_type, (void)device_id;
  for (workspace *at = current.instance->workspaces[current.number]; at < current.instance->workspaces[current.number] + MAX_WORKSPACES; ++at)
    if (at->memory == memory) return at->in_use = 0;
  return -1;
}

static int launch(pool_task task, void *data, int tasks) {
  int failed = 0;
  if (current.in_loop) { /* a loop within a parallel loop runs on the thread that meets it */
    pool_group group = {NULL, tasks > 0 ? tasks : 1};
    for (int32_t i = 0; i < group.num_task; ++i) failed |= task(i, &group, data);
    return failed;
  }
  current.in_loop = 1;
  tvmflow_instance *instance = current.instance;
  const uint32_t extent = instance->loop_count ? *instance->loops : 0;
  if (instance->loop_count) ++instance->loops, --instance->loop_count;
  failed = pool_run(&instance->threads, instance->team, task, data, tasks, extent);
  current.in_loop = 0;
  return failed;
}

/* The kernels call through these pointers. */
int (*const __TVMBackendParallelLaunch)(pool_task, void *, int) = launch;
void *(*const __TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = take_workspace;
int (*const __TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = (size_t)snprintf(current.error, ERROR_SIZE, "%s: ", kind);
  for (int32_t i = 0; i < count && used < ERROR_SIZE; ++i)
    if (parts[i]) used += (size_t)snprintf(current.error + used, ERROR_SIZE - used, "%s", parts[i]);
}

/* -- making and freeing -- */

static uint32_t bucket_count(void) { return plan.sizes ? plan.sizes->bucket_count : 1; }

static const plan_tables *bucket(uint32_t i) { return plan.sizes ? plan.sizes->buckets[i].plan : &plan; }

/* Let the next run be in this bucket. */
static void turn_to(tvmflow_instance *instance, const plan_tables *tables) {
  if (instance->now == tables || plan.gpu) return;
  instance->now = tables;
  instance->moved = 1;
  instance->tensors = instance->all_tensors;
  instance->arguments = instance->all_arguments;
  instance->teams_now = instance->teams;
  for (uint32_t i = 0; bucket(i) != tables; ++i) {
    instance->tensors += bucket(i)->value_count;
    instance->arguments += bucket(i)->argument_count;
    ++instance->teams_now;
  }
}

/* Fill the tensors and arguments of the bucket that is next. */
static void bind(tvmflow_instance *made) {
  const plan_tables *now = made->now;
  for (uint32_t i = 0; i < now->value_count; ++i) {
    const plan_value *value = &now->values[i];
    plan_tensor *tensor = &made->tensors[i];
    *tensor = (plan_tensor){NULL, PLAN_DEVICE_CPU, 0, value->ndim, value->code, value->bits, 1, value->shape, value->strides, 0};
    if (value->place == PLAN_CONSTANT) tensor->data = (void *)(uintptr_t)(plan.constants + value->offset);
    if (value->place == PLAN_ARENA) tensor->data = made->arena + value->offset;
  }
  for (uint32_t i = 0; i < now->argument_count; ++i) {
    made->arguments[i].type_index = PLAN_ANY_TENSOR;
    made->arguments[i].value.pointer = &made->tensors[now->arguments[i]];
  }
}

static void free_memory(tvmflow_instance *freed) {
  fallback_close(&freed->other);
  for (uint32_t thread = 0; thread < TVMFLOW_MAX_THREADS; ++thread)
    for (uint32_t i = 0; i < MAX_WORKSPACES; ++i) release(freed, freed->workspaces[thread][i].memory);
  if (freed->places)
    for (uint32_t i = 0; i < plan_api.inputs + plan_api.outputs; ++i) release(freed, freed->places[i].own);
  device_program *programs = freed->device.programs;
  device_unload(&freed->device);
  if (freed->gpu) plan.gpu->functions->close(freed->gpu);
  release(freed, freed->gpu_inputs);
  release(freed, programs);
  release(freed, freed->places);
  release(freed, freed->image_memory);
  release(freed, freed->scores);
  release(freed, freed->calls);
  release(freed, freed->all_arguments);
  release(freed, freed->all_tensors);
  release(freed, freed->team_steps);
  release(freed, freed->teams);
  release(freed, freed->arena);
  tvmflow_instance copy = {.options = freed->options};
  release(&copy, freed);
}

/* Say what is wrong with a driver; NULL for nothing. */
static const char *driver_fault(const tvmflow_driver *driver) {
  if (!plan.program_count) return driver ? "a driver for a network that has no accelerator's part" : NULL;
  if (!driver) return "the network needs the driver of its accelerator: create_on";
  if (driver->size < sizeof *driver) return "a driver of an older header";
  if (!driver->allocate || !driver->release || !driver->launch) return "a driver needs allocate, release and launch";
  return NULL;
}

static tvmflow_status load_device(tvmflow_instance *made, const tvmflow_driver *driver) {
  if (!plan.program_count) return TVMFLOW_OK;
  device_program *programs = allocate(made, plan.program_count * sizeof *programs);
  if (!programs) return told(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  memset(programs, 0, plan.program_count * sizeof *programs);
  if (device_load(&made->device, driver, programs)) return told(TVMFLOW_DEVICE_FAILED, "the driver has no memory for the programs", NULL);
  return TVMFLOW_OK;
}

/* Run once on zeros: drivers compile for the device and bring weights there when a kernel first runs, and the app's first run is as fast as any. What
 * a device that failed was given stays: it may still write there. */
static tvmflow_status warm_up(tvmflow_instance *made) {
  const uint32_t count = plan_api.inputs + plan_api.outputs;
  char why[GPU_REASON] = "";
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = 0; i < count; ++i) made->gpu_inputs[i] = NULL;
  for (uint32_t i = 0; i < count && !status; ++i) {
    const size_t size = i < plan_api.inputs ? plan.inputs[i].size : plan.outputs[i - plan_api.inputs].size;
    void *memory = allocate(made, size);
    if (memory) memset(memory, 0, size);
    made->gpu_inputs[i] = memory;
    if (!memory) status = told(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  }
  void *const *outputs = (void *const *)(made->gpu_inputs + plan_api.inputs);
  if (!status && plan.gpu->functions->run(made->gpu, made->gpu_inputs, outputs, NULL, why)) {
    snprintf(current.error, ERROR_SIZE, "%.80s (%.80s %.80s): %.200s", made->is.device, made->is.driver, made->is.version, why);
    return TVMFLOW_DEVICE_FAILED;
  }
  for (uint32_t i = 0; i < count; ++i) release(made, (void *)(uintptr_t)made->gpu_inputs[i]);
  return status;
}

static tvmflow_status open_gpu(tvmflow_instance *made, const tvmflow_gpu *gpu) {
  const tvmflow_gpu none = {.size = sizeof none};
  char why[GPU_REASON] = "";
  if (!plan.gpu) return TVMFLOW_OK;
  made->gpu_inputs = allocate(made, (plan_api.inputs + plan_api.outputs) * sizeof *made->gpu_inputs);
  if (!made->gpu_inputs) return told(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  if (plan.gpu->functions->open(gpu ? gpu : &none, &made->gpu, why)) return told(TVMFLOW_DEVICE_FAILED, "%s", why);
  plan.gpu->functions->identify(made->gpu, &made->is);
  return warm_up(made);
}

/* The memory that the CPU walks over the plan in; a network on a GPU has its own there. */
static int make_memory(tvmflow_instance *made) {
  const size_t tensors = (plan_api.inputs + plan_api.outputs) * sizeof *made->places;
  made->places = allocate(made, tensors);
  if (!made->places) return -1;
  memset(made->places, 0, tensors);
  made->now = &plan;
  if (plan.gpu) return 0;
  size_t values = 0, arguments = 0, steps = 0;
  for (uint32_t i = 0; i < bucket_count(); ++i) {
    values += bucket(i)->value_count;
    arguments += bucket(i)->argument_count;
    steps += bucket(i)->step_count;
  }
  made->arena = allocate(made, plan_api.arena_size);
  made->all_tensors = allocate(made, values * sizeof *made->tensors);
  made->all_arguments = allocate(made, arguments * sizeof *made->arguments);
  made->teams = allocate(made, bucket_count() * sizeof *made->teams);
  made->team_steps = allocate(made, steps * sizeof *made->team_steps);
  if (!made->arena || !made->all_tensors || !made->all_arguments || !made->teams || !made->team_steps) return -1;
  memset(made->all_arguments, 0, arguments * sizeof *made->arguments);
  made->now = NULL;
  teams_step *first = made->team_steps;
  for (uint32_t i = 0; i < bucket_count(); first += bucket(i++)->step_count) {
    teams_start(&made->teams[i], first, bucket(i)->step_count, made->options.threads);
    turn_to(made, bucket(i));
    bind(made);
  }
  return 0;
}

static tvmflow_status create(const tvmflow_options *options, const tvmflow_driver *driver, const tvmflow_gpu *gpu, tvmflow_instance **instance);

tvmflow_status tvmflow_create(const tvmflow_options *options, tvmflow_instance **instance) { return create(options, NULL, NULL, instance); }

tvmflow_status tvmflow_create_on(const tvmflow_options *options, const tvmflow_driver *driver, tvmflow_instance **instance) {
  return create(options, driver, NULL, instance);
}

tvmflow_status tvmflow_create_on_gpu(const tvmflow_options *options, const tvmflow_gpu *gpu, tvmflow_instance **instance) {
  current.error[0] = 0;
  if (!plan.gpu) return told(TVMFLOW_BAD_ARGUMENT, "a GPU for a network that was compiled for the CPU", NULL);
  if (gpu && gpu->size < sizeof *gpu) return told(TVMFLOW_BAD_ARGUMENT, "a GPU of an older header", NULL);
  return create(options, NULL, gpu, instance);
}

tvmflow_status tvmflow_create_with_gpu(const tvmflow_options *options, const tvmflow_api *other, const tvmflow_gpu *gpu, const void *const *sample,
                                       tvmflow_instance **instance) {
  const char *fault = fallback_fault(other);
  tvmflow_instance *made = NULL;
  current.error[0] = 0;
  if (!instance) return told(TVMFLOW_BAD_ARGUMENT, "no place for the instance", NULL);
  if (fault) return told(TVMFLOW_BAD_ARGUMENT, "%s", fault);
  tvmflow_status status = create(options, NULL, NULL, &made);
  if (status) return status;
  if (fallback_start(&made->other, other, gpu, made, sample)) {
    tvmflow_destroy(made);
    return told(TVMFLOW_NO_MEMORY, "no memory for the self-test of the GPU", NULL);
  }
  current.error[0] = 0; /* of the self-test */
  *instance = made;
  return TVMFLOW_OK;
}

static tvmflow_status create(const tvmflow_options *options, const tvmflow_driver *driver, const tvmflow_gpu *gpu, tvmflow_instance **instance) {
  tvmflow_options wanted = {0};
  current.error[0] = 0;
  if (!instance) return told(TVMFLOW_BAD_ARGUMENT, "no place for the instance", NULL);
  const char *fault = driver_fault(driver);
  if (fault) return told(TVMFLOW_BAD_ARGUMENT, "%s", fault);
  if (options) wanted = *options;
  if (!wanted.threads) wanted.threads = plan_api.threads;
  if (wanted.threads > TVMFLOW_MAX_THREADS) return told(TVMFLOW_BAD_ARGUMENT, "more threads than TVMFLOW_MAX_THREADS", NULL);
  if (wanted.threads > pool_cpus(wanted.cpu_mask)) wanted.threads = pool_cpus(wanted.cpu_mask);
  if (!wanted.allocate != !wanted.release) return told(TVMFLOW_BAD_ARGUMENT, "allocate and release belong together", NULL);
  tvmflow_instance asking = {.options = wanted};
  tvmflow_instance *made = allocate(&asking, sizeof *made);
  if (!made) return told(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  memset(made, 0, sizeof *made);
  made->options = wanted;
  tvmflow_status status = TVMFLOW_OK;
  if (make_memory(made)) status = told(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  if (!status) status = load_device(made, driver);
  if (!status) status = open_gpu(made, gpu);
  if (status) {
    free_memory(made);
    return status;
  }
  status = TVMFLOW_NO_THREADS;
  if (!pthread_mutex_init(&made->mutex, NULL)) {
    status = pool_start(&made->threads, wanted.threads, wanted.cpu_mask, wanted.spin_us, enter_worker, made);
    if (status) pthread_mutex_destroy(&made->mutex);
  }
  if (status) {
    free_memory(made);
    return told(status, "the system made no thread, or refused the CPU mask", NULL);
  }
  for (uint32_t i = 0; made->teams && i < bucket_count(); ++i) made->teams[i].spin_ns = made->threads.spin_ns;
  *instance = made;
  return TVMFLOW_OK;
}

void tvmflow_destroy(tvmflow_instance *instance) {
  if (!instance) return;
  pool_stop(&instance->threads);
  pthread_mutex_destroy(&instance->mutex);
  free_memory(instance);
}

/* -- running -- */

static int is_aligned(const void *memory, size_t alignment) { return (uintptr_t)memory % alignment == 0; }

/* Kernels take inputs at any address of an element; an accelerator's programs copy whole lines. */
static size_t input_alignment(const tvmflow_instance *instance, const tvmflow_tensor *input) {
  return instance->now->program_count ? TVMFLOW_ALIGNMENT : plan_width_of(input->dtype);
}

static void *own_memory(tvmflow_instance *instance, place *at, size_t size) {
  if (!at->own) at->own = allocate(instance, size);
  return at->own;
}

/* Let the kernels use this memory, or ours where it is NULL or not aligned. */
static tvmflow_status settle(tvmflow_instance *instance, place *at, const void *memory, size_t size, size_t alignment) {
  if (!memory || (!is_aligned(memory, alignment) && !plan.gpu)) memory = own_memory(instance, at, size);
  if (!memory) return told(TVMFLOW_NO_MEMORY, "no memory for an input or output that is not aligned", NULL);
  instance->moved |= at->used != memory;
  at->used = (unsigned char *)(uintptr_t)memory;
  return TVMFLOW_OK;
}

/* sizes: of inputs that may be smaller than the bucket's; NULL for those that are not. Memory of ours is as large as the largest bucket's. */
static tvmflow_status settle_inputs(tvmflow_instance *instance, const int64_t *sizes, const void *const *inputs) {
  for (uint32_t i = 0; i < plan_api.inputs; ++i) {
    place *at = &instance->places[i];
    const tvmflow_tensor *wanted = &instance->now->inputs[i];
    const int exact = sizes_are_exact(i, wanted, sizes);
    tvmflow_status status = settle(instance, at, exact ? inputs[i] : NULL, plan.inputs[i].size, input_alignment(instance, wanted));
    if (status) return status;
    if (!exact) sizes_pad(i, wanted, sizes, inputs[i], at->used);
    else if (at->used != inputs[i]) memcpy(at->used, inputs[i], wanted->size);
  }
  return TVMFLOW_OK;
}

/* sizes: as of settle_inputs; outputs: NULL for memory of ours. */
static tvmflow_status settle_outputs(tvmflow_instance *instance, const int64_t *sizes, void *const *outputs) {
  for (uint32_t i = 0; i < plan_api.outputs; ++i) {
    const uint32_t tensor = plan_api.inputs + i;
    void *given = outputs && sizes_are_exact(tensor, &instance->now->outputs[i], sizes) ? outputs[i] : NULL;
    tvmflow_status status = settle(instance, &instance->places[tensor], given, plan.outputs[i].size, TVMFLOW_ALIGNMENT);
    if (status) return status;
  }
  return TVMFLOW_OK;
}

/* Point the values that lie in inputs and outputs at them. */
static void point(tvmflow_instance *instance) {
  for (uint32_t i = 0; i < instance->now->value_count && instance->moved; ++i) {
    const plan_value *value = &instance->now->values[i];
    if (value->place == PLAN_INPUT) instance->tensors[i].data = instance->places[value->index].used + value->offset;
    if (value->place == PLAN_OUTPUT) instance->tensors[i].data = instance->places[plan_api.inputs + value->index].used + value->offset;
  }
  instance->moved = 0;
}

static void add_to_profile(tvmflow_instance *instance, uint32_t i, uint64_t ns) {
  instance->calls[i] += 1;
  instance->nanoseconds[i] += ns;
}

static tvmflow_status run_step(tvmflow_instance *instance, uint32_t i, uint32_t team) {
  const plan_step *step = &instance->now->steps[i];
  plan_any result = {PLAN_ANY_NONE, 0, {0}};
  instance->loops = step->loops;
  instance->loop_count = step->loop_count;
  instance->team = team;
  if (step->program && device_run(&instance->device, step->program - 1, instance->arguments + step->arguments))
    return told(TVMFLOW_DEVICE_FAILED, "the accelerator failed in %s", step->name);
  if (!step->program && step->kernel(NULL, instance->arguments + step->arguments, (int32_t)step->count, &result))
    return current.error[0] ? TVMFLOW_KERNEL_FAILED : told(TVMFLOW_KERNEL_FAILED, "kernel %s failed", step->name);
  return TVMFLOW_OK;
}

static tvmflow_status walk(tvmflow_instance *instance) {
  const plan_tables *now = instance->now;
  teams *used = instance->teams_now;
  const int profiling = instance->profiling && now == &plan, trying = !profiling && teams_begin(used, now_ns), timed = profiling || trying;
  if (trying || used->largest > 1) pool_settle(&instance->threads);
  const uint64_t first = timed ? now_ns() : 0;
  uint64_t begin = first;
  for (uint32_t i = 0; i < now->step_count; ++i) {
    const tvmflow_status status = run_step(instance, i, trying ? used->steps[i].tried : used->steps[i].chosen);
    if (status) return status;
    if (!timed) continue;
    const uint64_t end = now_ns();
    if (profiling) add_to_profile(instance, i, end - begin);
    if (trying) teams_note(used, i, end - begin);
    begin = end;
  }
  if (trying) teams_end(used, begin - first, begin);
  for (uint32_t i = 0; i < now->copy_count; ++i)
    memcpy(instance->tensors[now->copies[i].to].data, instance->tensors[now->copies[i].from].data, now->copies[i].size);
  return TVMFLOW_OK;
}

static tvmflow_status run_on_gpu(tvmflow_instance *instance) {
  const uint32_t count = plan_api.inputs + plan_api.outputs;
  char why[GPU_REASON] = "";
  for (uint32_t i = 0; i < count; ++i) instance->gpu_inputs[i] = instance->places[i].used;
  void *const *outputs = (void *const *)(instance->gpu_inputs + plan_api.inputs);
  uint64_t *times = instance->profiling ? instance->nanoseconds : NULL;
  if (plan.gpu->functions->run(instance->gpu, instance->gpu_inputs, outputs, times, why)) return told(TVMFLOW_DEVICE_FAILED, "%s", why);
  for (uint32_t i = 0; i < plan.step_count + PROFILE_OTHERS && times; ++i) instance->calls[i] += i != plan.step_count + PROFILE_IMAGES;
  return TVMFLOW_OK;
}

/* Run on inputs that are settled; sizes and outputs as of settle_outputs. */
static tvmflow_status run_settled(tvmflow_instance *instance, const int64_t *sizes, void *const *outputs) {
  tvmflow_status status = settle_outputs(instance, sizes, outputs);
  if (status) return status;
  if (!plan.gpu) point(instance);
  status = plan.gpu ? run_on_gpu(instance) : walk(instance);
  for (uint32_t i = 0; i < plan_api.outputs && !status && outputs; ++i) {
    const place *at = &instance->places[plan_api.inputs + i];
    const tvmflow_tensor *found = &instance->now->outputs[i];
    if (!sizes_are_exact(plan_api.inputs + i, found, sizes)) sizes_cut(plan_api.inputs + i, found, sizes, at->used, outputs[i]);
    else if (at->used != outputs[i]) memcpy(outputs[i], at->used, found->size);
  }
  return status;
}

static void enter(tvmflow_instance *instance, const plan_tables *tables) {
  pthread_mutex_lock(&instance->mutex);
  current.instance = instance;
  turn_to(instance, tables);
}

static tvmflow_status leave(tvmflow_instance *instance, tvmflow_status status) {
  current.instance = NULL;
  pthread_mutex_unlock(&instance->mutex);
  return status;
}

/* Leave with TVMFLOW_OK where the library for a GPU computes and this call of it does not fail. */
#define LEAVE_IF_GPU(instance, call)                                                                                                  \
  do {                                                                                                                                \
    fallback *other = &(instance)->other;                                                                                             \
    if (other->computes && fallback_did(other, other->api->call)) return leave(instance, TVMFLOW_OK);                                 \
  } while (0)

static tvmflow_status check_outputs(void *const *outputs) {
  for (uint32_t i = 0; i < plan_api.outputs; ++i)
    if (!outputs[i]) return told(TVMFLOW_BAD_ARGUMENT, "output %s is NULL", plan.outputs[i].name);
  return TVMFLOW_OK;
}

static tvmflow_status check_run(const tvmflow_instance *instance, const void *const *inputs, void *const *outputs) {
  if (!instance || !inputs || !outputs) return told(TVMFLOW_BAD_ARGUMENT, "instance, inputs or outputs are NULL", NULL);
  for (uint32_t i = 0; i < plan_api.inputs; ++i)
    if (!inputs[i]) return told(TVMFLOW_BAD_ARGUMENT, "input %s is NULL", plan.inputs[i].name);
  return check_outputs(outputs);
}

tvmflow_status tvmflow_run(tvmflow_instance *instance, const void *const *inputs, void *const *outputs) {
  current.error[0] = 0;
  tvmflow_status status = check_run(instance, inputs, outputs);
  if (status) return status;
  enter(instance, &plan);
  LEAVE_IF_GPU(instance, run(other->instance, inputs, outputs));
  status = settle_inputs(instance, NULL, inputs);
  if (!status) status = run_settled(instance, NULL, outputs);
  return leave(instance, status);
}

static tvmflow_status check_sizes(const void *sizes) {
  if (!plan.sizes) return told(TVMFLOW_BAD_ARGUMENT, "the network has one shape: run", NULL);
  return sizes ? TVMFLOW_OK : told(TVMFLOW_BAD_ARGUMENT, "sizes are NULL", NULL);
}

tvmflow_status tvmflow_run_sized(tvmflow_instance *instance, const int64_t *sizes, const void *const *inputs, void *const *outputs) {
  current.error[0] = 0;
  tvmflow_status status = check_sizes(sizes);
  if (!status && sizes_fault(sizes, current.error, ERROR_SIZE)) status = TVMFLOW_BAD_ARGUMENT;
  if (!status) status = check_run(instance, inputs, outputs);
  if (status) return status;
  enter(instance, sizes_bucket(sizes));
  status = settle_inputs(instance, sizes, inputs);
  if (!status) status = run_settled(instance, sizes, outputs);
  return leave(instance, status);
}

/* -- images -- */

static tvmflow_status check_images(const tvmflow_image *images) {
  if (!plan.image) return told(TVMFLOW_BAD_ARGUMENT, "the network takes no images", NULL);
  if (!images) return told(TVMFLOW_BAD_ARGUMENT, "images are NULL", NULL);
  for (uint32_t i = 0; i < plan_api.images; ++i) {
    const char *fault = image_fault(&images[i]);
    if (fault) return told(TVMFLOW_BAD_ARGUMENT, fault, NULL);
  }
  return TVMFLOW_OK;
}

/* Return memory in which an image is resized: the one of the last image where that suffices. */
static void *memory_for(tvmflow_instance *instance, const tvmflow_image *image) {
  size_t size = image_memory(plan.image, image);
  if (size <= instance->image_size) return instance->image_memory;
  release(instance, instance->image_memory);
  instance->image_memory = allocate(instance, size);
  instance->image_size = instance->image_memory ? size : 0;
  return instance->image_memory;
}

/* Settle the one input: images as the network wants them, in memory of ours. */
static tvmflow_status settle_images(tvmflow_instance *instance, const tvmflow_image *images) {
  uint64_t begin = instance->profiling ? now_ns() : 0;
  tvmflow_status status = settle(instance, instance->places, NULL, plan.inputs[0].size, TVMFLOW_ALIGNMENT);
  for (uint32_t i = 0; i < plan_api.images && !status; ++i) {
    void *memory = memory_for(instance, &images[i]);
    if (!memory) return told(TVMFLOW_NO_MEMORY, "no memory to resize an image", NULL);
    const uint64_t pixels = (uint64_t)images[i].width * images[i].height + (uint64_t)plan.image->width * plan.image->height;
    const uint32_t team = pixels > FEW_PIXELS ? instance->options.threads : 1;
    if (team > 1) pool_settle(&instance->threads);
    image_prepare(plan.image, &images[i], memory, &instance->threads, team, instance->places[0].used + i * plan.image->sample_size);
  }
  if (instance->profiling && !status) add_to_profile(instance, plan.step_count + PROFILE_IMAGES, now_ns() - begin);
  return status;
}

tvmflow_status tvmflow_run_image(tvmflow_instance *instance, const tvmflow_image *images, void *const *outputs) {
  current.error[0] = 0;
  if (!instance || !outputs) return told(TVMFLOW_BAD_ARGUMENT, "instance or outputs are NULL", NULL);
  tvmflow_status status = check_images(images);
  if (!status) status = check_outputs(outputs);
  if (status) return status;
  enter(instance, &plan);
  LEAVE_IF_GPU(instance, run_image(other->instance, images, outputs));
  status = settle_images(instance, images);
  if (!status) status = run_settled(instance, NULL, outputs);
  return leave(instance, status);
}

/* Number of classes of the first output; 0 where it is no scores of one sample. */
static uint32_t class_count(void) {
  const tvmflow_tensor *output = &plan.outputs[0];
  if (output->ndim != 2 || output->shape[0] != 1 || output->shape[1] > UINT32_MAX) return 0;
  return output->dtype <= TVMFLOW_BFLOAT16 ? (uint32_t)output->shape[1] : 0;
}

static tvmflow_status classes_of(tvmflow_instance *instance, uint32_t k, uint32_t *indices, float *probabilities) {
  const uint32_t count = class_count();
  if (!instance->scores) instance->scores = allocate(instance, count * sizeof *instance->scores);
  if (!instance->scores) return told(TVMFLOW_NO_MEMORY, "no memory for the scores", NULL);
  scores_read(&plan.outputs[0], instance->places[plan_api.inputs].used, instance->scores, count);
  if (tvmflow_top_k(instance->scores, count, k, indices)) return told(TVMFLOW_BAD_ARGUMENT, "fewer than k scores are numbers", NULL);
  if (probabilities) scores_to_probabilities(instance->scores, count, indices, k, probabilities);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_classify(tvmflow_instance *instance, const tvmflow_image *image, uint32_t k, uint32_t *indices, float *probabilities) {
  current.error[0] = 0;
  if (!instance || !indices) return told(TVMFLOW_BAD_ARGUMENT, "instance or indices are NULL", NULL);
  tvmflow_status status = check_images(image);
  if (status) return status;
  if (!class_count()) return told(TVMFLOW_BAD_ARGUMENT, "output %s is no scores of the classes of one image", plan.outputs[0].name);
  if (!k || k > class_count()) return told(TVMFLOW_BAD_ARGUMENT, "k is 1 to the number of classes", NULL);
  enter(instance, &plan);
  LEAVE_IF_GPU(instance, classify(other->instance, image, k, indices, probabilities));
  status = settle_images(instance, image);
  if (!status) status = run_settled(instance, NULL, NULL);
  if (!status) status = classes_of(instance, k, indices, probabilities);
  return leave(instance, status);
}

/* -- information -- */

tvmflow_status tvmflow_input(uint32_t i, tvmflow_tensor *info) {
  if (i >= plan_api.inputs || !info) return TVMFLOW_BAD_ARGUMENT;
  *info = plan.inputs[i];
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_output(uint32_t i, tvmflow_tensor *info) {
  if (i >= plan_api.outputs || !info) return TVMFLOW_BAD_ARGUMENT;
  *info = plan.outputs[i];
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_size_of(uint32_t i, tvmflow_size *info) {
  if (i >= plan_api.sizes || !info) return TVMFLOW_BAD_ARGUMENT;
  *info = plan.sizes->sizes[i];
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_sizes_of(const int64_t *const *shapes, int64_t *sizes) {
  int64_t found[TVMFLOW_MAX_SIZES];
  current.error[0] = 0;
  tvmflow_status status = check_sizes(shapes && sizes ? shapes : NULL);
  for (uint32_t i = 0; i < plan_api.inputs && !status; ++i)
    if (!shapes[i]) status = told(TVMFLOW_BAD_ARGUMENT, "the shape of input %s is NULL", plan.inputs[i].name);
  if (status) return status;
  if (sizes_read(shapes, found, current.error, ERROR_SIZE)) return TVMFLOW_BAD_ARGUMENT;
  memcpy(sizes, found, plan_api.sizes * sizeof *sizes);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_shape_of(int is_output, uint32_t i, const int64_t *sizes, int64_t *shape) {
  current.error[0] = 0;
  tvmflow_status status = check_sizes(shape ? sizes : NULL);
  if (status) return status;
  if (i >= (is_output ? plan_api.outputs : plan_api.inputs)) return told(TVMFLOW_BAD_ARGUMENT, "no such tensor", NULL);
  if (sizes_fault(sizes, current.error, ERROR_SIZE)) return TVMFLOW_BAD_ARGUMENT;
  sizes_shape(is_output ? plan_api.inputs + i : i, sizes, shape);
  return TVMFLOW_OK;
}

const char *tvmflow_last_error(void) { return current.error; }

tvmflow_status tvmflow_set_profiling(tvmflow_instance *instance, int on) {
  const size_t rows = plan.step_count + PROFILE_OTHERS;
  if (!instance) return TVMFLOW_BAD_ARGUMENT;
  tvmflow_status status = TVMFLOW_OK;
  pthread_mutex_lock(&instance->mutex);
  if (on && !instance->calls) {
    instance->calls = allocate(instance, 2 * rows * sizeof *instance->calls);
    if (!instance->calls) status = TVMFLOW_NO_MEMORY;
    else instance->nanoseconds = instance->calls + rows;
  }
  if (on && !status) memset(instance->calls, 0, 2 * rows * sizeof *instance->calls);
  instance->profiling = on && !status;
  pthread_mutex_unlock(&instance->mutex);
  return status;
}

tvmflow_status tvmflow_profile_of(const tvmflow_instance *instance, uint32_t i, tvmflow_profile *found) {
  static const char *const others[] = {"images", "inputs", "outputs"};
  if (!instance || !found || i >= plan.step_count + PROFILE_OTHERS || !instance->calls) return TVMFLOW_BAD_ARGUMENT;
  if (i == plan.step_count + PROFILE_IMAGES ? !plan.image : i > plan.step_count && !plan.gpu) return TVMFLOW_BAD_ARGUMENT;
  *found = (tvmflow_profile){i < plan.step_count ? plan.steps[i].name : others[i - plan.step_count], instance->calls[i], instance->nanoseconds[i]};
  return TVMFLOW_OK;
}

uint32_t tvmflow_threads_of(tvmflow_instance *instance) {
  if (!instance) return 0;
  uint32_t most = plan.gpu ? instance->options.threads : 1;
  pthread_mutex_lock(&instance->mutex);
  for (uint32_t i = 0; i < bucket_count() && !plan.gpu; ++i)
    if (instance->teams[i].largest > most) most = instance->teams[i].largest;
  pthread_mutex_unlock(&instance->mutex);
  return most;
}

tvmflow_status tvmflow_processor_of(const tvmflow_instance *instance, tvmflow_processor *found) {
  if (!instance || !found) return TVMFLOW_BAD_ARGUMENT;
  const fallback *other = &instance->other;
  if (other->instance) {
    tvmflow_status status = other->api->processor(other->instance, found);
    if (!status && !other->computes) found->kind = "cpu", found->reason = other->reason;
    return status;
  }
  *found = (tvmflow_processor){plan.gpu ? "gpu" : "cpu", other->reason, instance->is.device, instance->is.driver, instance->is.version};
  return TVMFLOW_OK;
}
