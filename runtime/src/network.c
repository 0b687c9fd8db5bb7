/* Run a network: its memory, its threads, and the steps of its plan. */
#define _GNU_SOURCE
#include "clock.h"
#include "device.h"
#include "fallback.h"
#include "forks.h"
#include "image.h"
#include "network_gpu.h"
#include "plan.h"
#include "pool.h"
#include "processor.h"
#include "scores.h"
#include "sizes.h"
#include "teams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#define MAX_WORKSPACES 16
#define POPULATED ((size_t)64 << 10) /* bytes from which mapping all pages at once pays */
#define POPULATE_WRITE 23                /* advice of Linux 5.14, missing in the headers of some systems */
#ifdef __APPLE__
#define HUGE_PAGE ((size_t)1 << 62) /* none */
#else
#define HUGE_PAGE ((size_t)2 << 20) /* bytes, of x86-64 and arm64 with pages of 4 KB */
#endif
#define ERROR_SIZE 512
#define FEW_PIXELS 4096 /* pixels of an image below which threads do not pay */

typedef struct {
  void *memory;
  size_t size, asked; /* asked: what it was taken for last */
  int in_use;
} workspace;

/* The memory of an input or output. own: allocated on first use, if the caller's memory is missing or not aligned. */
typedef struct {
  void *own;
  unsigned char *memory;
} io_buffer;

/* What an instance lacks in a child of fork. */
typedef enum { OURS, NO_THREADS_YET, FORKED_IN_RUN } ownership;

struct tvmflow_instance {
  forks_entry in_forks;
  ownership owner; /* of its threads: this process, or a parent */
  tvmflow_options options;
  pool threads;
  device_part device; /* all zero if the network has none */
  gpu_part *gpu;      /* NULL if the CPU runs the plan */
  gpu_identity identity;
  fallback gpu_library; /* runs on a GPU until it fails */
  const void **gpu_inputs; /* addresses of its inputs, then outputs, in a run */
  pthread_mutex_t mutex;
  unsigned char *arena;
  const plan_tables *tables; /* the plan of the selected bucket; `plan` itself without buckets */
  plan_tensor *tensors;  /* one per value of its plan; all_tensors: those of all buckets in order */
  plan_any *arguments;   /* one per argument of a step, likewise */
  plan_tensor *all_tensors;
  plan_any *all_arguments;
  teams *teams;          /* one per bucket */
  teams_step *team_steps; /* of all buckets in order */
  teams *teams_now;      /* of the selected bucket */
  uint32_t team;         /* of the running step */
  io_buffer *buffers;         /* of inputs, then outputs */
  const uint32_t *loops; /* extents of the running step's remaining parallel loops */
  uint32_t loop_count;
  int needs_rebind;             /* whether a buffer or the bucket changed since the values were bound */
  uint64_t *calls, *nanoseconds; /* one per step, and PROFILE_OTHERS; NULL until profiling is first on */
  int profiling;
  void *image_memory;    /* workspace to resize images, sized for the largest so far */
  size_t image_size;
  float *scores;         /* of the first output, allocated on first use */
  unsigned char *states; /* that the instance carries, one after the other; NULL: none */
  workspace workspaces[TVMFLOW_MAX_THREADS][MAX_WORKSPACES]; /* of each thread */
};

/* The instance of this thread: TVM's kernels do not pass it to their callbacks. */
static _Thread_local struct {
  tvmflow_instance *instance;
  uint32_t number;
  int in_loop;
  char error[ERROR_SIZE];
} current;

static void enter_worker(void *owner, uint32_t number) {
  current.instance = owner;
  current.number = number;
  current.in_loop = 1; /* threads of the pool only run tasks of loops */
}

/* Set the error message, formatted with one word or NULL, and return the status. */
static tvmflow_status fail(tvmflow_status status, const char *text, const char *word) {
  snprintf(current.error, ERROR_SIZE, text, word); /* all formats are constants of this file */
  return status;
}

/* -- memory -- */

/* Map all pages at once, without a fault for each; systems that cannot map them on first access. */
static void populate(void *memory, size_t size) {
#ifndef __linux__
  (void)memory, (void)size;
#else
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory & ~(page - 1);
  if (size >= POPULATED) madvise((void *)begin, (uintptr_t)memory + size - begin, POPULATE_WRITE);
#endif
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
  if (alignment == HUGE_PAGE) madvise(memory, taken, MADV_HUGEPAGE); /* fewer faults and TLB misses; may be refused */
#endif
  populate(memory, rounded);
  return memory;
}

static void release(tvmflow_instance *instance, void *memory) {
  if (!memory) return;
  if (instance->options.release) instance->options.release(instance->options.context, memory);
  else free(memory);
}

/* -- callbacks of TVM's kernels -- */

static void *take_workspace(int device_type, int device_id, uint64_t size, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  workspace *found = NULL, *room = NULL;
  for (workspace *at = current.instance->workspaces[current.number]; at < current.instance->workspaces[current.number] + MAX_WORKSPACES; ++at) {
    if (at->in_use) continue;
    if (at->asked == size && at->memory) { /* as in the last row of the same loop */
      found = at;
      break;
    }
    if (at->size >= size && at->memory && (!found || at->size < found->size)) found = at;
    if (!room || at->size < room->size) room = at;
  }
  if (!found) {
    if (!room) return NULL;
    release(current.instance, room->memory);
    *room = (workspace){allocate(current.instance, size), size, size, 0};
    if (!room->memory) return room->size = 0, NULL;
    found = room;
  }
  found->asked = size;
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
  if (current.in_loop) { /* a nested parallel loop runs on the current thread */
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

#ifdef __wasi__ /* kernels register themselves as the module starts, and name functions beside the pointers */
int TVMBackendParallelLaunch(pool_task task, void *data, int tasks) { return launch(task, data, tasks); }
int TVMFFIEnvModRegisterSystemLibSymbol(const char *name, void *symbol) { return (void)name, (void)symbol, 0; }
#endif

/* -- creating and destroying -- */

static uint32_t bucket_count(void) { return plan.sizes ? plan.sizes->bucket_count : 1; }

static const plan_tables *bucket(uint32_t i) { return plan.sizes ? plan.sizes->buckets[i].plan : &plan; }

/* Select the bucket of the next run. */
static void select_bucket(tvmflow_instance *instance, const plan_tables *tables) {
  if (instance->tables == tables || plan.gpu) return;
  instance->tables = tables;
  instance->needs_rebind = 1;
  instance->tensors = instance->all_tensors;
  instance->arguments = instance->all_arguments;
  instance->teams_now = instance->teams;
  for (uint32_t i = 0; bucket(i) != tables; ++i) {
    instance->tensors += bucket(i)->value_count;
    instance->arguments += bucket(i)->argument_count;
    ++instance->teams_now;
  }
}

/* Fill the tensors and arguments of the selected bucket. */
static void bind_values(tvmflow_instance *made) {
  const plan_tables *now = made->tables;
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

static size_t aligned_size(size_t size) { return (size + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT; }

/* Return the bytes of the first `count` states. */
static size_t state_bytes(uint32_t count) {
  size_t size = 0;
  for (uint32_t i = 0; i < count; ++i) size += aligned_size(plan.inputs[plan.states[i].input].size);
  return size;
}

/* Return the state of an input, or of an output; plan_api.states if it is none. */
static uint32_t state_at(int is_output, uint32_t at) {
  uint32_t i = 0;
  while (i < plan_api.states && (is_output ? plan.states[i].output : plan.states[i].input) != at) ++i;
  return i;
}

static void reset_states(tvmflow_instance *instance) {
  for (uint32_t i = 0; i < plan_api.states; ++i) {
    const plan_state *state = &plan.states[i];
    size_t size = plan.inputs[state->input].size;
    unsigned char *memory = instance->states + state_bytes(i);
    if (!state->initial) memset(memory, 0, size);
    else for (size_t at = 0; at < size; at += state->initial_size) memcpy(memory + at, state->initial, state->initial_size);
  }
}

static int make_states(tvmflow_instance *made) {
  if (!plan_api.states) return 0;
  made->states = allocate(made, state_bytes(plan_api.states));
  if (!made->states) return -1;
  reset_states(made);
  return 0;
}

/* Whether a driver holds a part of an instance; it cannot be shared with a child of fork. */
static int has_driver(const tvmflow_instance *instance) { return instance->gpu || instance->device.programs; }

static void free_memory(tvmflow_instance *freed) {
  const int is_ours = freed->owner == OURS;
  fallback_close(&freed->gpu_library);
  for (uint32_t thread = 0; thread < TVMFLOW_MAX_THREADS; ++thread)
    for (uint32_t i = 0; i < MAX_WORKSPACES; ++i) release(freed, freed->workspaces[thread][i].memory);
  if (freed->buffers)
    for (uint32_t i = 0; i < plan_api.inputs + plan_api.outputs; ++i) release(freed, freed->buffers[i].own);
  device_program *programs = freed->device.programs;
  if (is_ours) device_unload(&freed->device);
  if (is_ours && freed->gpu) plan.gpu->functions->close(freed->gpu);
  release(freed, freed->gpu_inputs);
  release(freed, programs);
  release(freed, freed->buffers);
  release(freed, freed->image_memory);
  release(freed, freed->scores);
  release(freed, freed->states);
  release(freed, freed->calls);
  release(freed, freed->all_arguments);
  release(freed, freed->all_tensors);
  release(freed, freed->team_steps);
  release(freed, freed->teams);
  release(freed, freed->arena);
  tvmflow_instance copy = {.options = freed->options};
  release(&copy, freed);
}

/* Return the fault of a driver, NULL for none. */
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
  if (!programs) return fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  memset(programs, 0, plan.program_count * sizeof *programs);
  if (device_load(&made->device, driver, programs)) return fail(TVMFLOW_DEVICE_FAILED, "the driver has no memory for the programs", NULL);
  return TVMFLOW_OK;
}

/* Run once on zeros: drivers compile and upload weights when a kernel first runs, so that the app's first run is as fast as others. The buffers of
 * a failed run are not freed: the device may still write to them. */
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
    if (!memory) status = fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  }
  void *const *outputs = (void *const *)(made->gpu_inputs + plan_api.inputs);
  if (!status && plan.gpu->functions->run(made->gpu, made->gpu_inputs, outputs, NULL, why)) {
    snprintf(current.error, ERROR_SIZE, "%.80s (%.80s %.80s): %.200s", made->identity.device, made->identity.driver, made->identity.version, why);
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
  if (!made->gpu_inputs) return fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  if (plan.gpu->functions->open(gpu ? gpu : &none, &made->gpu, why)) return fail(TVMFLOW_DEVICE_FAILED, "%s", why);
  plan.gpu->functions->identify(made->gpu, &made->identity);
  return warm_up(made);
}

/* Allocate the memory in which the CPU runs the plan; a network on a GPU allocates its own there. */
static int make_memory(tvmflow_instance *made) {
  const size_t tensors = (plan_api.inputs + plan_api.outputs) * sizeof *made->buffers;
  made->buffers = allocate(made, tensors);
  if (!made->buffers) return -1;
  memset(made->buffers, 0, tensors);
  made->tables = &plan;
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
  made->tables = NULL;
  teams_step *first = made->team_steps;
  for (uint32_t i = 0; i < bucket_count(); first += bucket(i++)->step_count) {
    teams_start(&made->teams[i], first, bucket(i)->step_count, made->options.threads);
    select_bucket(made, bucket(i));
    bind_values(made);
  }
  return 0;
}

/* Note in a child of fork what became of an instance; the child has one thread. */
static void lose_threads(forks_entry *entry) {
  tvmflow_instance *instance = (tvmflow_instance *)(void *)((char *)entry - offsetof(tvmflow_instance, in_forks));
  const int is_running = forks_renew(&instance->mutex); /* then its data may be half written */
  instance->owner = is_running || instance->owner == FORKED_IN_RUN ? FORKED_IN_RUN : NO_THREADS_YET;
}

static tvmflow_status start_threads(tvmflow_instance *made) {
  const tvmflow_options *wanted = &made->options;
  const tvmflow_status status = pool_start(&made->threads, wanted->threads, wanted->cpu_mask, wanted->spin_us, enter_worker, made);
  if (status) return fail(status, "the system made no thread, or refused the CPU mask", NULL);
  for (uint32_t i = 0; made->teams && i < bucket_count(); ++i) made->teams[i].spin_ns = made->threads.spin_ns;
  return TVMFLOW_OK;
}

static tvmflow_status create(const tvmflow_options *options, const tvmflow_driver *driver, const tvmflow_gpu *gpu, tvmflow_instance **instance);

tvmflow_status tvmflow_create(const tvmflow_options *options, tvmflow_instance **instance) { return create(options, NULL, NULL, instance); }

tvmflow_status tvmflow_create_on(const tvmflow_options *options, const tvmflow_driver *driver, tvmflow_instance **instance) {
  return create(options, driver, NULL, instance);
}

tvmflow_status tvmflow_create_on_gpu(const tvmflow_options *options, const tvmflow_gpu *gpu, tvmflow_instance **instance) {
  current.error[0] = 0;
  if (!plan.gpu) return fail(TVMFLOW_BAD_ARGUMENT, "a GPU for a network that was compiled for the CPU", NULL);
  if (gpu && gpu->size < sizeof *gpu) return fail(TVMFLOW_BAD_ARGUMENT, "a GPU of an older header", NULL);
  return create(options, NULL, gpu, instance);
}

tvmflow_status tvmflow_create_with_gpu(const tvmflow_options *options, const tvmflow_api *other, const tvmflow_gpu *gpu, const void *const *sample,
                                       tvmflow_instance **instance) {
  const char *fault = fallback_fault(other);
  tvmflow_instance *made = NULL;
  current.error[0] = 0;
  if (!instance) return fail(TVMFLOW_BAD_ARGUMENT, "no place for the instance", NULL);
  if (fault) return fail(TVMFLOW_BAD_ARGUMENT, "%s", fault);
  if (plan_api.states) return fail(TVMFLOW_BAD_ARGUMENT, "a library for a GPU beside a network with states", NULL);
  tvmflow_status status = create(options, NULL, NULL, &made);
  if (status) return status;
  if (fallback_start(&made->gpu_library, other, gpu, made, sample)) {
    tvmflow_destroy(made);
    return fail(TVMFLOW_NO_MEMORY, "no memory for the self-test of the GPU", NULL);
  }
  current.error[0] = 0; /* of the self-test */
  *instance = made;
  return TVMFLOW_OK;
}

static tvmflow_status create(const tvmflow_options *options, const tvmflow_driver *driver, const tvmflow_gpu *gpu, tvmflow_instance **instance) {
  tvmflow_options requested = {0};
  current.error[0] = 0;
  if (!instance) return fail(TVMFLOW_BAD_ARGUMENT, "no place for the instance", NULL);
  const char *fault = driver_fault(driver), *lacks = processor_lacks();
  if (fault) return fail(TVMFLOW_BAD_ARGUMENT, "%s", fault);
  if (lacks) return fail(TVMFLOW_WRONG_PROCESSOR, "this processor has no %s, which the library was compiled for", lacks);
  if (options) requested = *options;
  if (!requested.threads) requested.threads = plan_api.threads;
  if (requested.threads > TVMFLOW_MAX_THREADS) return fail(TVMFLOW_BAD_ARGUMENT, "more threads than TVMFLOW_MAX_THREADS", NULL);
  if (requested.threads > pool_cpus(requested.cpu_mask)) requested.threads = pool_cpus(requested.cpu_mask);
  if (!requested.allocate != !requested.release) return fail(TVMFLOW_BAD_ARGUMENT, "allocate and release belong together", NULL);
  tvmflow_instance allocator = {.options = requested};
  tvmflow_instance *made = allocate(&allocator, sizeof *made);
  if (!made) return fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  memset(made, 0, sizeof *made);
  made->options = requested;
  tvmflow_status status = TVMFLOW_OK;
  if (make_memory(made) || make_states(made)) status = fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  if (!status) status = load_device(made, driver);
  if (!status) status = open_gpu(made, gpu);
  if (status) {
    free_memory(made);
    return status;
  }
  if (pthread_mutex_init(&made->mutex, NULL)) {
    free_memory(made);
    return fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  }
  status = start_threads(made);
  if (!status && forks_add(&made->in_forks, lose_threads)) {
    pool_stop(&made->threads);
    status = fail(TVMFLOW_NO_MEMORY, "no memory for an instance", NULL);
  }
  if (status) {
    pthread_mutex_destroy(&made->mutex);
    free_memory(made);
    return status;
  }
  *instance = made;
  return TVMFLOW_OK;
}

void tvmflow_destroy(tvmflow_instance *instance) {
  if (!instance) return;
  forks_remove(&instance->in_forks);
  if (instance->owner == OURS) pool_stop(&instance->threads);
  pthread_mutex_destroy(&instance->mutex);
  if (instance->owner != FORKED_IN_RUN) free_memory(instance); /* else the memory may be half released */
}

/* -- running -- */

static int is_aligned(const void *memory, size_t alignment) { return (uintptr_t)memory % alignment == 0; }

/* Kernels read inputs with the alignment of an element; accelerator programs copy whole cache lines. */
static size_t input_alignment(const tvmflow_instance *instance, const tvmflow_tensor *input) {
  return instance->tables->program_count ? TVMFLOW_ALIGNMENT : plan_width_of(input->dtype);
}

static void *fallback_buffer(tvmflow_instance *instance, io_buffer *at, size_t size) {
  if (!at->own) at->own = allocate(instance, size);
  return at->own;
}

/* Use this memory for an input or output, or our own if it is NULL or not aligned. */
static tvmflow_status use_buffer(tvmflow_instance *instance, io_buffer *at, const void *memory, size_t size, size_t alignment) {
  if (!memory || (!is_aligned(memory, alignment) && !plan.gpu)) memory = fallback_buffer(instance, at, size);
  if (!memory) return fail(TVMFLOW_NO_MEMORY, "no memory for an input or output that is not aligned", NULL);
  instance->needs_rebind |= at->memory != memory;
  at->memory = (unsigned char *)(uintptr_t)memory;
  return TVMFLOW_OK;
}

/* sizes: of inputs that may be smaller than the bucket's, NULL if all are exact. Our own buffers are as large as the largest bucket's. */
static tvmflow_status prepare_inputs(tvmflow_instance *instance, const int64_t *sizes, const void *const *inputs) {
  for (uint32_t i = 0; i < plan_api.inputs; ++i) {
    io_buffer *at = &instance->buffers[i];
    const tvmflow_tensor *requested = &instance->tables->inputs[i];
    const int exact = sizes_are_exact(i, requested, sizes);
    const void *given = inputs[i] ? inputs[i] : instance->states + state_bytes(state_at(0, i));
    tvmflow_status status = use_buffer(instance, at, exact ? given : NULL, plan.inputs[i].size, input_alignment(instance, requested));
    if (status) return status;
    if (!exact) sizes_pad(i, requested, sizes, given, at->memory);
    else if (at->memory != given) memcpy(at->memory, given, requested->size);
  }
  return TVMFLOW_OK;
}

/* sizes: see prepare_inputs; outputs: NULL for our own buffers. */
static tvmflow_status prepare_outputs(tvmflow_instance *instance, const int64_t *sizes, void *const *outputs) {
  for (uint32_t i = 0; i < plan_api.outputs; ++i) {
    const uint32_t tensor = plan_api.inputs + i;
    void *given = outputs && sizes_are_exact(tensor, &instance->tables->outputs[i], sizes) ? outputs[i] : NULL;
    tvmflow_status status = use_buffer(instance, &instance->buffers[tensor], given, plan.outputs[i].size, TVMFLOW_ALIGNMENT);
    if (status) return status;
  }
  return TVMFLOW_OK;
}

/* Bind the values in inputs and outputs to their buffers. */
static void bind_buffers(tvmflow_instance *instance) {
  for (uint32_t i = 0; i < instance->tables->value_count && instance->needs_rebind; ++i) {
    const plan_value *value = &instance->tables->values[i];
    if (value->place == PLAN_INPUT) instance->tensors[i].data = instance->buffers[value->index].memory + value->offset;
    if (value->place == PLAN_OUTPUT) instance->tensors[i].data = instance->buffers[plan_api.inputs + value->index].memory + value->offset;
  }
  instance->needs_rebind = 0;
}

static void add_to_profile(tvmflow_instance *instance, uint32_t i, uint64_t ns) {
  instance->calls[i] += 1;
  instance->nanoseconds[i] += ns;
}

static tvmflow_status run_step(tvmflow_instance *instance, uint32_t i, uint32_t team) {
  const plan_step *step = &instance->tables->steps[i];
  plan_any result = {PLAN_ANY_NONE, 0, {0}};
  instance->loops = step->loops;
  instance->loop_count = step->loop_count;
  instance->team = team;
  if (step->program && device_run(&instance->device, step->program - 1, instance->arguments + step->arguments))
    return fail(TVMFLOW_DEVICE_FAILED, "the accelerator failed in %s", step->name);
  if (!step->program && step->kernel(NULL, instance->arguments + step->arguments, (int32_t)step->count, &result))
    return current.error[0] ? TVMFLOW_KERNEL_FAILED : fail(TVMFLOW_KERNEL_FAILED, "kernel %s failed", step->name);
  return TVMFLOW_OK;
}

static tvmflow_status run_plan(tvmflow_instance *instance) {
  const plan_tables *now = instance->tables;
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
  for (uint32_t i = 0; i < count; ++i) instance->gpu_inputs[i] = instance->buffers[i].memory;
  void *const *outputs = (void *const *)(instance->gpu_inputs + plan_api.inputs);
  uint64_t *times = instance->profiling ? instance->nanoseconds : NULL;
  if (plan.gpu->functions->run(instance->gpu, instance->gpu_inputs, outputs, times, why)) return fail(TVMFLOW_DEVICE_FAILED, "%s", why);
  for (uint32_t i = 0; i < plan.step_count + PROFILE_OTHERS && times; ++i) instance->calls[i] += i != plan.step_count + PROFILE_IMAGES;
  return TVMFLOW_OK;
}

/* Keep the outputs of a run that are states for the next one. */
static void keep_states(tvmflow_instance *instance) {
  for (uint32_t i = 0; i < plan_api.states; ++i) {
    const plan_state *state = &plan.states[i];
    memcpy(instance->states + state_bytes(i), instance->buffers[plan_api.inputs + state->output].memory, plan.outputs[state->output].size);
  }
}

/* Run on prepared inputs; sizes and outputs: see prepare_outputs. */
static tvmflow_status run_prepared(tvmflow_instance *instance, const int64_t *sizes, void *const *outputs) {
  tvmflow_status status = prepare_outputs(instance, sizes, outputs);
  if (status) return status;
  if (!plan.gpu) bind_buffers(instance);
  status = plan.gpu ? run_on_gpu(instance) : run_plan(instance);
  for (uint32_t i = 0; i < plan_api.outputs && !status && outputs; ++i) {
    const io_buffer *at = &instance->buffers[plan_api.inputs + i];
    const tvmflow_tensor *found = &instance->tables->outputs[i];
    if (!sizes_are_exact(plan_api.inputs + i, found, sizes)) sizes_cut(plan_api.inputs + i, found, sizes, at->memory, outputs[i]);
    else if (outputs[i] && at->memory != outputs[i]) memcpy(outputs[i], at->memory, found->size);
  }
  if (!status) keep_states(instance);
  return status;
}

static tvmflow_status unlock_instance(tvmflow_instance *instance, tvmflow_status status) {
  current.instance = NULL;
  pthread_mutex_unlock(&instance->mutex);
  return status;
}

/* Make an instance that a parent process created this process's own. */
static tvmflow_status adopt(tvmflow_instance *instance) {
  if (instance->owner == FORKED_IN_RUN) return fail(TVMFLOW_NO_THREADS, "the process was forked while this instance ran: create another in the child", NULL);
  if (has_driver(instance)) return fail(TVMFLOW_DEVICE_FAILED, "a device is not shared with a child of fork: create an instance in the child", NULL);
  const tvmflow_status status = start_threads(instance);
  if (!status) instance->owner = OURS;
  return status;
}

/* Lock an instance for a run. If that fails it is not locked. */
static tvmflow_status lock_instance(tvmflow_instance *instance, const plan_tables *tables) {
  pthread_mutex_lock(&instance->mutex);
  current.instance = instance;
  const tvmflow_status status = instance->owner == OURS ? TVMFLOW_OK : adopt(instance);
  if (status) return unlock_instance(instance, status);
  select_bucket(instance, tables);
  return TVMFLOW_OK;
}

/* Return TVMFLOW_OK if the library for a GPU is in use and this call of it does not fail. */
#define LEAVE_IF_GPU(instance, call)                                                                                                  \
  do {                                                                                                                                \
    fallback *other = &(instance)->gpu_library;                                                                                             \
    if (other->computes && fallback_did(other, other->api->call)) return unlock_instance(instance, TVMFLOW_OK);                                 \
  } while (0)

static tvmflow_status check_outputs(void *const *outputs) {
  for (uint32_t i = 0; i < plan_api.outputs; ++i)
    if (!outputs[i] && state_at(1, i) == plan_api.states) return fail(TVMFLOW_BAD_ARGUMENT, "output %s is NULL", plan.outputs[i].name);
  return TVMFLOW_OK;
}

static tvmflow_status check_run(const tvmflow_instance *instance, const void *const *inputs, void *const *outputs) {
  if (!instance || !inputs || !outputs) return fail(TVMFLOW_BAD_ARGUMENT, "instance, inputs or outputs are NULL", NULL);
  for (uint32_t i = 0; i < plan_api.inputs; ++i)
    if (!inputs[i] && state_at(0, i) == plan_api.states) return fail(TVMFLOW_BAD_ARGUMENT, "input %s is NULL", plan.inputs[i].name);
  return check_outputs(outputs);
}

tvmflow_status tvmflow_run(tvmflow_instance *instance, const void *const *inputs, void *const *outputs) {
  current.error[0] = 0;
  tvmflow_status status = check_run(instance, inputs, outputs);
  if (!status) status = lock_instance(instance, &plan);
  if (status) return status;
  LEAVE_IF_GPU(instance, run(other->instance, inputs, outputs));
  status = prepare_inputs(instance, NULL, inputs);
  if (!status) status = run_prepared(instance, NULL, outputs);
  return unlock_instance(instance, status);
}

static tvmflow_status check_sizes(const void *sizes) {
  if (!plan.sizes) return fail(TVMFLOW_BAD_ARGUMENT, "the network has one shape: run", NULL);
  return sizes ? TVMFLOW_OK : fail(TVMFLOW_BAD_ARGUMENT, "sizes are NULL", NULL);
}

tvmflow_status tvmflow_run_sized(tvmflow_instance *instance, const int64_t *sizes, const void *const *inputs, void *const *outputs) {
  current.error[0] = 0;
  tvmflow_status status = check_sizes(sizes);
  if (!status && sizes_fault(sizes, current.error, ERROR_SIZE)) status = TVMFLOW_BAD_ARGUMENT;
  if (!status) status = check_run(instance, inputs, outputs);
  if (!status) status = lock_instance(instance, sizes_bucket(sizes));
  if (status) return status;
  status = prepare_inputs(instance, sizes, inputs);
  if (!status) status = run_prepared(instance, sizes, outputs);
  return unlock_instance(instance, status);
}

/* -- images -- */

static tvmflow_status check_images(const tvmflow_image *images) {
  if (!plan.image) return fail(TVMFLOW_BAD_ARGUMENT, "the network takes no images", NULL);
  if (!images) return fail(TVMFLOW_BAD_ARGUMENT, "images are NULL", NULL);
  for (uint32_t i = 0; i < plan_api.images; ++i) {
    const char *fault = image_fault(&images[i]);
    if (fault) return fail(TVMFLOW_BAD_ARGUMENT, fault, NULL);
  }
  return TVMFLOW_OK;
}

/* Return the workspace to resize an image; reallocate it if it is too small. */
static void *image_workspace(tvmflow_instance *instance, const tvmflow_image *image) {
  size_t size = image_memory(plan.image, image);
  if (size <= instance->image_size) return instance->image_memory;
  release(instance, instance->image_memory);
  instance->image_memory = allocate(instance, size);
  instance->image_size = instance->image_memory ? size : 0;
  return instance->image_memory;
}

/* Prepare the only input: convert images to it in our own buffer. */
static tvmflow_status prepare_images(tvmflow_instance *instance, const tvmflow_image *images) {
  uint64_t begin = instance->profiling ? now_ns() : 0;
  tvmflow_status status = use_buffer(instance, instance->buffers, NULL, plan.inputs[0].size, TVMFLOW_ALIGNMENT);
  for (uint32_t i = 0; i < plan_api.images && !status; ++i) {
    void *memory = image_workspace(instance, &images[i]);
    if (!memory) return fail(TVMFLOW_NO_MEMORY, "no memory to resize an image", NULL);
    const uint64_t pixels = (uint64_t)images[i].width * images[i].height + (uint64_t)plan.image->width * plan.image->height;
    const uint32_t team = pixels > FEW_PIXELS ? instance->options.threads : 1;
    if (team > 1) pool_settle(&instance->threads);
    image_prepare(plan.image, &images[i], memory, &instance->threads, team, instance->buffers[0].memory + i * plan.image->sample_size);
  }
  if (instance->profiling && !status) add_to_profile(instance, plan.step_count + PROFILE_IMAGES, now_ns() - begin);
  return status;
}

tvmflow_status tvmflow_run_image(tvmflow_instance *instance, const tvmflow_image *images, void *const *outputs) {
  current.error[0] = 0;
  if (!instance || !outputs) return fail(TVMFLOW_BAD_ARGUMENT, "instance or outputs are NULL", NULL);
  tvmflow_status status = check_images(images);
  if (!status) status = check_outputs(outputs);
  if (!status) status = lock_instance(instance, &plan);
  if (status) return status;
  LEAVE_IF_GPU(instance, run_image(other->instance, images, outputs));
  status = prepare_images(instance, images);
  if (!status) status = run_prepared(instance, NULL, outputs);
  return unlock_instance(instance, status);
}

/* Return the number of classes of the first output; 0 if it is not the scores of one sample. */
static uint32_t class_count(void) {
  const tvmflow_tensor *output = &plan.outputs[0];
  if (output->ndim != 2 || output->shape[0] != 1 || output->shape[1] > UINT32_MAX) return 0;
  return output->dtype <= TVMFLOW_BFLOAT16 ? (uint32_t)output->shape[1] : 0;
}

static tvmflow_status classify_outputs(tvmflow_instance *instance, uint32_t k, uint32_t *indices, float *probabilities) {
  const uint32_t count = class_count();
  if (!instance->scores) instance->scores = allocate(instance, count * sizeof *instance->scores);
  if (!instance->scores) return fail(TVMFLOW_NO_MEMORY, "no memory for the scores", NULL);
  scores_read(&plan.outputs[0], instance->buffers[plan_api.inputs].memory, instance->scores, count);
  if (tvmflow_top_k(instance->scores, count, k, indices)) return fail(TVMFLOW_BAD_ARGUMENT, "fewer than k scores are numbers", NULL);
  if (probabilities) scores_to_probabilities(instance->scores, count, indices, k, probabilities);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_classify(tvmflow_instance *instance, const tvmflow_image *image, uint32_t k, uint32_t *indices, float *probabilities) {
  current.error[0] = 0;
  if (!instance || !indices) return fail(TVMFLOW_BAD_ARGUMENT, "instance or indices are NULL", NULL);
  tvmflow_status status = check_images(image);
  if (status) return status;
  if (!class_count()) return fail(TVMFLOW_BAD_ARGUMENT, "output %s is no scores of the classes of one image", plan.outputs[0].name);
  if (!k || k > class_count()) return fail(TVMFLOW_BAD_ARGUMENT, "k is 1 to the number of classes", NULL);
  status = lock_instance(instance, &plan);
  if (status) return status;
  LEAVE_IF_GPU(instance, classify(other->instance, image, k, indices, probabilities));
  status = prepare_images(instance, image);
  if (!status) status = run_prepared(instance, NULL, NULL);
  if (!status) status = classify_outputs(instance, k, indices, probabilities);
  return unlock_instance(instance, status);
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

tvmflow_status tvmflow_state_of(uint32_t i, uint32_t *input, uint32_t *output) {
  if (i >= plan_api.states || !input || !output) return TVMFLOW_BAD_ARGUMENT;
  *input = plan.states[i].input;
  *output = plan.states[i].output;
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_state_reset(tvmflow_instance *instance) {
  if (!instance) return TVMFLOW_BAD_ARGUMENT;
  pthread_mutex_lock(&instance->mutex);
  if (instance->states) reset_states(instance);
  pthread_mutex_unlock(&instance->mutex);
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
    if (!shapes[i]) status = fail(TVMFLOW_BAD_ARGUMENT, "the shape of input %s is NULL", plan.inputs[i].name);
  if (status) return status;
  if (sizes_read(shapes, found, current.error, ERROR_SIZE)) return TVMFLOW_BAD_ARGUMENT;
  memcpy(sizes, found, plan_api.sizes * sizeof *sizes);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_shape_of(int is_output, uint32_t i, const int64_t *sizes, int64_t *shape) {
  current.error[0] = 0;
  tvmflow_status status = check_sizes(shape ? sizes : NULL);
  if (status) return status;
  if (i >= (is_output ? plan_api.outputs : plan_api.inputs)) return fail(TVMFLOW_BAD_ARGUMENT, "no such tensor", NULL);
  if (sizes_fault(sizes, current.error, ERROR_SIZE)) return TVMFLOW_BAD_ARGUMENT;
  sizes_shape(is_output ? plan_api.inputs + i : i, sizes, shape);
  return TVMFLOW_OK;
}

const char *tvmflow_last_error(void) { return current.error; }

/* Return the lock of an instance that a call does not change otherwise. */
static pthread_mutex_t *mutex_of(const tvmflow_instance *instance) { return &((tvmflow_instance *)(uintptr_t)instance)->mutex; }

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
  if (!instance || !found || i >= plan.step_count + PROFILE_OTHERS) return TVMFLOW_BAD_ARGUMENT;
  if (i == plan.step_count + PROFILE_IMAGES ? !plan.image : i > plan.step_count && !plan.gpu) return TVMFLOW_BAD_ARGUMENT;
  pthread_mutex_t *mutex = mutex_of(instance);
  pthread_mutex_lock(mutex);
  const int is_known = instance->calls != NULL;
  if (is_known) *found = (tvmflow_profile){i < plan.step_count ? plan.steps[i].name : others[i - plan.step_count], instance->calls[i], instance->nanoseconds[i]};
  pthread_mutex_unlock(mutex);
  return is_known ? TVMFLOW_OK : TVMFLOW_BAD_ARGUMENT;
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
  const fallback *other = &instance->gpu_library;
  if (other->instance) {
    tvmflow_status status = other->api->processor(other->instance, found);
    pthread_mutex_t *mutex = mutex_of(instance);
    pthread_mutex_lock(mutex);
    if (!status && !other->computes) found->kind = "cpu", found->reason = other->reason;
    pthread_mutex_unlock(mutex);
    return status;
  }
  *found = (tvmflow_processor){plan.gpu ? "gpu" : "cpu", other->reason, instance->identity.device, instance->identity.driver, instance->identity.version};
  return TVMFLOW_OK;
}
