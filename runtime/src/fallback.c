#define _GNU_SOURCE
#include "fallback.h"

#include "scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bounds of tvmflow/evaluation/agreement.py. */
#define RESOLUTION 1e-5 /* relative to the largest output: an output with a smaller spread counts as constant */
#define LEAST_EQUAL 0.9 /* share of equal integers */
#define MOST_NOISE 0.5  /* root mean square error relative to the spread: 6 dB */

static int give_up(fallback *used, const char *text) {
  used->computes = 0;
  snprintf(used->reason, sizeof used->reason, "%s", text && *text ? text : "it gave no reason");
  return 0;
}

static int is_same_tensor(const tvmflow_tensor *a, const tvmflow_tensor *b) { return a->dtype == b->dtype && a->size == b->size; }

const char *fallback_fault(const tvmflow_api *api) {
  tvmflow_tensor theirs;
  if (plan.gpu) return "a library for the CPU takes one for a GPU, not the other way round";
  if (!api) return NULL;
  if (api->abi_version != TVMFLOW_ABI_VERSION || api->size < sizeof *api) return "the library for the GPU is of another version";
  if (!api->gpu) return "the other library is for the CPU, too";
  if (api->inputs != plan_api.inputs || api->outputs != plan_api.outputs || api->images != plan_api.images) return "the library for the GPU is of another network";
  for (uint32_t i = 0; i < api->inputs; ++i)
    if (api->input(i, &theirs) || !is_same_tensor(&theirs, &plan.inputs[i])) return "the library for the GPU has other inputs";
  for (uint32_t i = 0; i < api->outputs; ++i)
    if (api->output(i, &theirs) || !is_same_tensor(&theirs, &plan.outputs[i])) return "the library for the GPU has other outputs";
  return NULL;
}

/* -- the self-test -- */

static uint32_t next_random(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 7; }

/* Fill a tensor with reproducible numbers: floats of 0.5 to 2 of either sign, any bytes, other integers 0 or 1, which are legal indices. */
static void fill_random(const tvmflow_tensor *info, void *memory, uint32_t *state) {
  unsigned char *bytes = memory;
  switch (info->dtype) {
    case TVMFLOW_FLOAT32:
      for (size_t i = 0; i < info->size / 4; ++i) ((uint32_t *)memory)[i] = (0x3f000000u + (next_random(state) & 0xffffffu)) | (next_random(state) & 1) << 31;
      break;
    case TVMFLOW_FLOAT16:
      for (size_t i = 0; i < info->size / 2; ++i) ((uint16_t *)memory)[i] = (uint16_t)((0x3800u + (next_random(state) & 0x7ffu)) | (next_random(state) & 1) << 15);
      break;
    case TVMFLOW_BFLOAT16:
      for (size_t i = 0; i < info->size / 2; ++i) ((uint16_t *)memory)[i] = (uint16_t)((0x3f00u + (next_random(state) & 0xffu)) | (next_random(state) & 1) << 15);
      break;
    case TVMFLOW_INT32:
      for (size_t i = 0; i < info->size / 4; ++i) ((int32_t *)memory)[i] = (int32_t)(next_random(state) & 1);
      break;
    case TVMFLOW_INT64:
      for (size_t i = 0; i < info->size / 8; ++i) ((int64_t *)memory)[i] = (int64_t)(next_random(state) & 1);
      break;
    case TVMFLOW_BOOL:
      for (size_t i = 0; i < info->size; ++i) bytes[i] = next_random(state) & 1;
      break;
    default:
      for (size_t i = 0; i < info->size; ++i) bytes[i] = (unsigned char)next_random(state);
  }
}

/* Return the part of model@target:precision from the last colon. */
static const char *precision_of(const char *network) {
  const char *found = network;
  for (const char *at = network; *at; ++at)
    if (*at == ':') found = at;
  return found;
}

/* Return the error up to which two libraries agree: that of the precision, or infinity for different precisions. */
static double error_bound(const tvmflow_api *api) {
  if (strcmp(precision_of(api->network), precision_of(plan_api.network))) return INFINITY;
  return api->tolerance > plan_api.tolerance ? api->tolerance : plan_api.tolerance;
}

static int integers_differ(const tvmflow_tensor *info, const void *found, const void *expected, char *why) {
  const size_t width = plan_width_of(info->dtype), count = info->size / width;
  const unsigned char *a = found, *b = expected;
  size_t equal = 0;
  for (size_t i = 0; i < count; ++i) {
    size_t same = 0;
    while (same < width && a[i * width + same] == b[i * width + same]) ++same;
    equal += same == width;
  }
  if ((double)equal >= LEAST_EQUAL * (double)count) return 0;
  snprintf(why, GPU_REASON, "the self-test failed: of output %.64s %zu of %zu integers are the CPU's", info->name, equal, count);
  return -1;
}

static double number_at(const tvmflow_tensor *info, const void *from, size_t at) {
  float number = 0;
  scores_read(info, (const char *)from + at * plan_width_of(info->dtype), &number, 1);
  return number;
}

static int floats_differ(const tvmflow_tensor *info, const void *found, const void *expected, double bound, char *why) {
  const size_t count = info->size / plan_width_of(info->dtype);
  double sum = 0, squares = 0, largest = 0, error = 0, noise = 0;
  size_t numbers = 0;
  for (size_t i = 0; i < count; ++i) {
    const double b = number_at(info, expected, i);
    if (!isfinite(b)) continue;
    const double difference = fabs(number_at(info, found, i) - b); /* NaN if one of them is */
    numbers += 1;
    sum += b;
    if (fabs(b) > largest) largest = fabs(b);
    if (!(difference <= error)) error = isfinite(difference) ? difference : INFINITY;
    noise += difference * difference;
  }
  for (size_t i = 0; i < count; ++i) {
    const double b = number_at(info, expected, i) - sum / (double)numbers;
    if (isfinite(b)) squares += b * b;
  }
  double spread = numbers > 1 ? sqrt(squares / (double)(numbers - 1)) : 0;
  if (spread <= RESOLUTION * largest) spread = largest; /* the output is constant */
  if (!numbers || (spread == 0 && error == 0)) return 0;
  if (error <= bound * spread && sqrt(noise / (double)numbers) <= MOST_NOISE * spread) return 0;
  snprintf(why, GPU_REASON, "the self-test failed: output %.64s is %.3g of its spread off the CPU's, %.3g is allowed", info->name, error / spread, bound);
  return -1;
}

/* Return tensor i of a self-test: inputs, then outputs of the GPU, then of the CPU. */
static const tvmflow_tensor *test_tensor(uint32_t i) {
  return i < plan_api.inputs ? &plan.inputs[i] : &plan.outputs[(i - plan_api.inputs) % plan_api.outputs];
}

static void *allocate_zeros(size_t size) {
  void *made = NULL;
  if (posix_memalign(&made, TVMFLOW_ALIGNMENT, size + TVMFLOW_ALIGNMENT)) return NULL;
  return memset(made, 0, size + TVMFLOW_ALIGNMENT);
}

/* Allocate all tensors in one block and set their addresses; return NULL if out of memory. */
static unsigned char *allocate_tensors(unsigned char **tensors, uint32_t count) {
  size_t size = 0;
  for (uint32_t i = 0; i < count; ++i) size += (test_tensor(i)->size + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT;
  unsigned char *memory = allocate_zeros(size), *at = memory;
  for (uint32_t i = 0; memory && i < count; ++i) {
    tensors[i] = at;
    at += (test_tensor(i)->size + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT;
  }
  return memory;
}

static int self_test(fallback *made, tvmflow_instance *cpu, const void *const *sample, unsigned char **tensors) {
  void **gpu_outputs = (void **)(tensors + plan_api.inputs), **cpu_outputs = gpu_outputs + plan_api.outputs;
  uint32_t state = 1;
  for (uint32_t i = 0; i < plan_api.inputs && !sample; ++i) fill_random(&plan.inputs[i], tensors[i], &state);
  const void *const *inputs = sample ? sample : (const void *const *)tensors;
  if (!fallback_did(made, made->api->run(made->instance, inputs, gpu_outputs))) return 0;
  made->computes = 0; /* the next run is the CPU's */
  if (plan_api.run(cpu, inputs, cpu_outputs) != TVMFLOW_OK) return give_up(made, plan_api.last_error());
  char why[GPU_REASON];
  for (uint32_t i = 0; i < plan_api.outputs; ++i) {
    const tvmflow_tensor *info = &plan.outputs[i];
    const int differs = info->dtype <= TVMFLOW_BFLOAT16 ? floats_differ(info, gpu_outputs[i], cpu_outputs[i], error_bound(made->api), why)
                                                        : integers_differ(info, gpu_outputs[i], cpu_outputs[i], why);
    if (differs) return give_up(made, why);
  }
  return made->computes = 1;
}

int fallback_start(fallback *made, const tvmflow_api *api, const tvmflow_gpu *gpu, tvmflow_instance *cpu, const void *const *sample) {
  if (!api) return give_up(made, "no library for a GPU was given");
  made->api = api;
  if (!fallback_did(made, api->create_on_gpu(NULL, gpu, &made->instance))) return 0;
  const uint32_t count = plan_api.inputs + 2 * plan_api.outputs;
  unsigned char **tensors = allocate_zeros(count * sizeof *tensors);
  unsigned char *memory = tensors ? allocate_tensors(tensors, count) : NULL;
  if (memory) self_test(made, cpu, sample, tensors);
  free(memory);
  free(tensors);
  return memory ? 0 : -1;
}

int fallback_did(fallback *used, tvmflow_status status) { return status == TVMFLOW_OK ? 1 : give_up(used, used->api->last_error()); }

void fallback_close(fallback *closed) {
  if (closed->instance) closed->api->destroy(closed->instance);
}
