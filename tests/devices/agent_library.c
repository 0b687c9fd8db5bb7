/* A library of tvmflow.h with one input and one output of 1024 floats, which does what KIND says when it is run. */
#include "tvmflow.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DOUBLES, FORGETS, STOPS, READS_NOTHING, BAD_INSTRUCTION, REFUSES, EXITS, GROWS, DOT_PRODUCT, LINGERS, COMPUTES };
#define SIZE 1024

static const int64_t shape[] = {1, SIZE};
static uint64_t calls;
static int profiling;
static char *volatile grown;

static tvmflow_status input(uint32_t i, tvmflow_tensor *info) {
  *info = (tvmflow_tensor){"x \"quoted\"", shape, 2, TVMFLOW_FLOAT32, SIZE * sizeof(float)};
  return i ? TVMFLOW_BAD_ARGUMENT : TVMFLOW_OK;
}
static tvmflow_status output(uint32_t i, tvmflow_tensor *info) {
  *info = (tvmflow_tensor){"y", shape, 2, TVMFLOW_FLOAT32, SIZE * sizeof(float)};
  return i ? TVMFLOW_BAD_ARGUMENT : TVMFLOW_OK;
}
static tvmflow_status create(const tvmflow_options *options, tvmflow_instance **instance) {
  *instance = (tvmflow_instance *)&calls;
  return options->threads > 4 ? TVMFLOW_NO_THREADS : TVMFLOW_OK;
}
/* For so many seconds of the processor's time. */
static void compute(float seconds) {
  struct timespec now;
  do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  while ((float)now.tv_sec + (float)now.tv_nsec / 1e9f < seconds);
}
static tvmflow_status run(tvmflow_instance *instance, const void *const *inputs, void *const *outputs) {
  (void)instance;
  const float *x = inputs[0];
  float *y = outputs[0];
  calls += profiling;
  puts("libraries print");
  if (KIND == STOPS && x[0] > 1) raise(SIGSTOP);
  if (KIND == READS_NOTHING) *(volatile int *)0 = 1;
  if (KIND == BAD_INSTRUCTION) __builtin_trap();
#ifdef __aarch64__
  if (KIND == DOT_PRODUCT)
    __asm__ volatile(".inst 0x4e829420" ::: "v0"); /* sdot v0.4s, v1.16b, v2.16b */
#endif
  if (KIND == REFUSES) return TVMFLOW_KERNEL_FAILED;
  if (KIND == EXITS) exit(3);
  if (KIND == LINGERS) nanosleep(&(struct timespec){0, 1000000}, 0); /* beside the 1000 ns that its kernel is said to take */
  if (KIND == COMPUTES) compute(x[0]);
  if (KIND == GROWS) memset(grown = malloc(8 << 20), 1, 8 << 20);
  for (int i = 0; i < (KIND == FORGETS ? SIZE / 2 : SIZE); ++i) y[i] = 2 * x[i];
  return TVMFLOW_OK;
}
static void destroy(tvmflow_instance *instance) { (void)instance; }
static const char *last_error(void) { return "a kernel refused"; }
static tvmflow_status set_profiling(tvmflow_instance *instance, int on) {
  (void)instance;
  if (on) calls = 0;
  profiling = on;
  return TVMFLOW_OK;
}
static tvmflow_status profile(const tvmflow_instance *instance, uint32_t i, tvmflow_profile *found) {
  (void)instance, (void)i;
  *found = (tvmflow_profile){"double", calls, 1000 * calls};
  return TVMFLOW_OK;
}

static const tvmflow_api api = {TVMFLOW_ABI_VERSION, sizeof api, "test", 1, 1, 1, 1, 0, 0, input, output, create, run, destroy, last_error, set_profiling, profile, 0, 0, 0, 0, 0, 0};
const tvmflow_api *tvmflow_network(void) { return &api; }
