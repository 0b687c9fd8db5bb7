/* Run a library without TVM through TVM's RPC server, which is how devices are reached: functions of TVM's calling convention
 * around those of tvmflow.h. A device gets this file's object beside the library as it ships; no app needs it.
 *
 *     open(path, threads, driver, error) -> handle, 0 on failure;  run(handle, inputs..., outputs..., error) -> status;  close(handle)
 *     count(handle, inputs..., outputs..., counters, error) -> status: a run, with counts of an emulator if there is one (
 *         runtime/emulator/count.c): instructions, multiply-add instructions, multiply-adds, bytes loaded, bytes stored; else zeros
 *     profile(handle, on) -> status: turn the profile of kernels on, set to zero, or off
 *     kernel(handle, i, name, counts) -> status: of kernel call i, name as error has text, counts: int64 of 2, calls and nanoseconds
 *     resident() -> bytes of this process in memory, 0 if unknown
 *     state(threads, look, numbers) -> status: the state of this process and its machine; numbers: float64 of 9, those of
 *         runtime/measure/process_state.h in their order
 *
 * driver: the address of a tvmflow_driver for a network with a device, 0 for others. path and error: uint8 tensors that end in a zero; error: at least 512 bytes, "" on success.
 */
#define _GNU_SOURCE
#include "plan.h"
#include "process_state.h"
#include "random_pad.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ERROR_SIZE 512
#define MAX_TENSORS 64
#define COUNTERS_CALL 7201 /* of runtime/emulator/count.c; no kernel has it */
#define COUNTERS 5
enum { ANY_INTEGER = 1, ANY_TENSOR_OBJECT = 70, OBJECT_HEADER = 24 }; /* of TVM's FFI */

typedef struct {
  void *library;
  const tvmflow_api *api;
  tvmflow_instance *instance;
  void *pad;
} opened;

static const plan_tensor *tensor_of(const plan_any *argument) {
  if (argument->type_index == PLAN_ANY_TENSOR) return argument->value.pointer;
  if (argument->type_index != ANY_TENSOR_OBJECT) return NULL;
  return (const plan_tensor *)((const char *)argument->value.pointer + OBJECT_HEADER);
}

static void *data_of(const plan_any *argument) {
  const plan_tensor *tensor = tensor_of(argument);
  return tensor ? (char *)tensor->data + tensor->byte_offset : NULL;
}

/* Return the bytes of a tensor argument, 0 for anything else. */
static size_t size_of(const plan_any *argument) {
  const plan_tensor *tensor = tensor_of(argument);
  size_t size = tensor ? tensor->bits / 8u : 0;
  for (int32_t i = 0; tensor && i < tensor->ndim; ++i) size *= (size_t)tensor->shape[i];
  return size;
}

static int return_integer(plan_any *result, int64_t value) {
  *result = (plan_any){ANY_INTEGER, 0, {value}};
  return 0;
}

static void *fail_open(opened *made, char *error, const char *text) {
  snprintf(error, ERROR_SIZE, "%s", text ? text : "unknown");
  if (made && made->library) dlclose(made->library);
  if (made) free(made->pad);
  free(made);
  return NULL;
}

static opened *open_network(const char *path, uint32_t threads, const tvmflow_driver *driver, char *error) {
  opened *made = calloc(1, sizeof *made);
  if (!made) return fail_open(made, error, "no memory");
  made->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!made->library) return fail_open(made, error, dlerror());
  tvmflow_entry entry;
  *(void **)&entry = dlsym(made->library, "tvmflow_network");
  if (!entry) return fail_open(made, error, "it exports no tvmflow_network");
  made->api = entry();
  if (made->api->abi_version != TVMFLOW_ABI_VERSION) return fail_open(made, error, "it has another version of the ABI");
  made->pad = random_pad();
  tvmflow_options options = {.threads = threads};
  tvmflow_status status = driver ? made->api->create_on(&options, driver, &made->instance) : made->api->create(&options, &made->instance);
  if (status != TVMFLOW_OK) return fail_open(made, error, made->api->last_error());
  return made;
}

int __tvm_ffi_open(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_open(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self;
  const char *path = count == 4 ? data_of(&arguments[0]) : NULL;
  char *error = count == 4 ? data_of(&arguments[3]) : NULL;
  if (!path || !error) return -1;
  *error = 0;
  const tvmflow_driver *driver = (const tvmflow_driver *)(intptr_t)arguments[2].value.integer;
  return return_integer(result, (int64_t)(intptr_t)open_network(path, (uint32_t)arguments[1].value.integer, driver, error));
}

/* Read the sizes of a run from the shapes of its tensors, and check these. */
static tvmflow_status sizes_in(const tvmflow_api *api, const plan_any *arguments, int64_t *sizes, char *error) {
  const int64_t *shapes[MAX_TENSORS];
  for (uint32_t i = 0; i < api->inputs; ++i) shapes[i] = tensor_of(&arguments[i])->shape;
  tvmflow_status status = api->sizes_of(shapes, sizes);
  if (status) return fail_open(NULL, error, api->last_error()), status;
  for (uint32_t i = 0; i < api->outputs; ++i) {
    const plan_tensor *output = tensor_of(&arguments[api->inputs + i]);
    int64_t shape[PLAN_MAX_AXES];
    api->shape_of(1, i, sizes, shape);
    if (!memcmp(shape, output->shape, (size_t)output->ndim * sizeof *shape)) continue;
    snprintf(error, ERROR_SIZE, "output %u has another shape than inputs of these sizes make", i);
    return TVMFLOW_BAD_ARGUMENT;
  }
  return TVMFLOW_OK;
}

/* With dynamic sizes an argument may be smaller than `info`, which is of the largest bucket. */
static int is_matching(const plan_any *argument, const tvmflow_tensor *info, int is_sized) {
  const plan_tensor *tensor = tensor_of(argument);
  if (!is_sized) return size_of(argument) == info->size;
  size_t element = info->size;
  for (int32_t i = 0; i < info->ndim; ++i) element /= (size_t)info->shape[i];
  return tensor && tensor->ndim == info->ndim && info->ndim <= PLAN_MAX_AXES && tensor->bits / 8u == element;
}

int __tvm_ffi_run(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_run(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self;
  int64_t sizes[TVMFLOW_MAX_SIZES];
  void *tensors[MAX_TENSORS];
  opened *network = (opened *)(intptr_t)arguments[0].value.integer;
  char *error = data_of(&arguments[count - 1]);
  uint32_t inputs = network->api->inputs, expected = inputs + network->api->outputs;
  const int is_sized = network->api->size > offsetof(tvmflow_api, sizes) && network->api->sizes;
  if (!error) return -1;
  *error = 0;
  if ((uint32_t)count != expected + 2 || expected > MAX_TENSORS) {
    snprintf(error, ERROR_SIZE, "%d tensors, and not %u", count - 2, expected);
    return return_integer(result, TVMFLOW_BAD_ARGUMENT);
  }
  for (uint32_t i = 0; i < expected; ++i) {
    tvmflow_tensor info;
    if (i < inputs) network->api->input(i, &info);
    else network->api->output(i - inputs, &info);
    if (!is_matching(&arguments[i + 1], &info, is_sized)) {
      snprintf(error, ERROR_SIZE, "%s has %zu bytes, and not %zu", info.name, size_of(&arguments[i + 1]), info.size);
      return return_integer(result, TVMFLOW_BAD_ARGUMENT);
    }
    tensors[i] = data_of(&arguments[i + 1]);
  }
  tvmflow_status status = is_sized ? sizes_in(network->api, arguments + 1, sizes, error) : TVMFLOW_OK;
  if (status != TVMFLOW_OK) return return_integer(result, status);
  status = is_sized ? network->api->run_sized(network->instance, sizes, (const void *const *)tensors, tensors + inputs)
                    : network->api->run(network->instance, (const void *const *)tensors, tensors + inputs);
  if (status != TVMFLOW_OK) fail_open(NULL, error, network->api->last_error());
  return return_integer(result, status);
}

/* Called only if TVMFLOW_COUNTERS is set: other systems may end a process for an unknown system call. */
static void read_counters(uint64_t *counters) {
  if (getenv("TVMFLOW_COUNTERS")) syscall(COUNTERS_CALL, counters, COUNTERS * sizeof *counters);
}

int __tvm_ffi_count(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_count(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  plan_any run[MAX_TENSORS + 2];
  uint64_t first[COUNTERS] = {0}, before[COUNTERS] = {0}, after[COUNTERS] = {0};
  int64_t *found = count >= 3 ? data_of(&arguments[count - 2]) : NULL;
  if (!found || count > MAX_TENSORS + 3 || size_of(&arguments[count - 2]) != COUNTERS * sizeof *found) return -1;
  memcpy(run, arguments, (size_t)(count - 2) * sizeof *run);
  run[count - 2] = arguments[count - 1];
  read_counters(first), read_counters(before); /* subtract the cost of reading */
  int failure = __tvm_ffi_run(self, run, count - 1, result);
  read_counters(after);
  for (int i = 0; i < COUNTERS; ++i) found[i] = (int64_t)(after[i] - before[i] - (before[i] - first[i]));
  return failure;
}

int __tvm_ffi_profile(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_profile(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self;
  if (count != 2) return -1;
  opened *network = (opened *)(intptr_t)arguments[0].value.integer;
  return return_integer(result, network->api->set_profiling(network->instance, (int)arguments[1].value.integer));
}

int __tvm_ffi_kernel(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_kernel(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self;
  char *name = count == 4 ? data_of(&arguments[2]) : NULL;
  int64_t *counts = count == 4 ? data_of(&arguments[3]) : NULL;
  if (!name || size_of(&arguments[2]) < ERROR_SIZE || !counts || size_of(&arguments[3]) != 2 * sizeof *counts) return -1;
  opened *network = (opened *)(intptr_t)arguments[0].value.integer;
  tvmflow_profile found;
  tvmflow_status status = TVMFLOW_BAD_ARGUMENT;
  if ((uint64_t)arguments[1].value.integer < network->api->kernels)
    status = network->api->profile(network->instance, (uint32_t)arguments[1].value.integer, &found);
  if (status != TVMFLOW_OK) return return_integer(result, status);
  snprintf(name, ERROR_SIZE, "%s", found.kernel);
  counts[0] = (int64_t)found.calls, counts[1] = (int64_t)found.nanoseconds;
  return return_integer(result, status);
}

int __tvm_ffi_close(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_close(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)count;
  opened *network = (opened *)(intptr_t)arguments[0].value.integer;
  network->api->destroy(network->instance);
  dlclose(network->library);
  free(network->pad);
  free(network);
  return return_integer(result, TVMFLOW_OK);
}

int __tvm_ffi_resident(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_resident(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self, (void)arguments, (void)count;
  long all = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (file && fscanf(file, "%ld %ld", &all, &resident) != 2) resident = 0;
  if (file) fclose(file);
  return return_integer(result, (int64_t)resident * sysconf(_SC_PAGESIZE));
}

int __tvm_ffi_state(void *self, const plan_any *arguments, int32_t count, plan_any *result);
int __tvm_ffi_state(void *self, const plan_any *arguments, int32_t count, plan_any *result) {
  (void)self;
  process_state *found = count == 3 ? data_of(&arguments[2]) : NULL;
  if (!found || size_of(&arguments[2]) != sizeof *found) return -1;
  const int64_t threads = arguments[0].value.integer;
  read_process_state(threads > 0 ? (unsigned)threads : 0, arguments[1].value.integer != 0, found);
  return return_integer(result, TVMFLOW_OK);
}
