/* Run a network on inputs from a file, and print what one run executes: run LIBRARY THREADS INPUTS OUTPUTS
 *
 * INPUTS holds the inputs of one run after those of the other, OUTPUTS gets the outputs in the same order. Then the inputs of the last
 * run are computed once more, and what that executes is written to standard output: the counters of count.c, or zeros without it.
 */
#define _GNU_SOURCE
#include "tvmflow.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNTERS_CALL 7201
enum { COUNTERS = 7, MAX_TENSORS = 64 };

static int fail(const char *what, const char *why) {
  fprintf(stderr, "run: %s: %s\n", what, why);
  return 1;
}

static void *memory_of(uint32_t at, tvmflow_status (*describe)(uint32_t, tvmflow_tensor *), size_t *size) {
  tvmflow_tensor info;
  if (describe(at, &info) != TVMFLOW_OK) return NULL;
  *size = info.size;
  return aligned_alloc(64, (info.size + 63) / 64 * 64);
}

int main(int count, char **words) {
  if (count != 5) return fail("arguments", "run LIBRARY THREADS INPUTS OUTPUTS");
  void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL), *inputs[MAX_TENSORS], *outputs[MAX_TENSORS];
  if (!library) return fail(words[1], dlerror());
  tvmflow_entry entry;
  *(void **)&entry = dlsym(library, "tvmflow_network");
  if (!entry) return fail(words[1], "it exports no tvmflow_network");
  const tvmflow_api *api = entry();
  tvmflow_options options = {.threads = (uint32_t)strtoul(words[2], NULL, 10)};
  tvmflow_instance *net = NULL;
  if (api->create(&options, &net) != TVMFLOW_OK) return fail(words[1], api->last_error());
  FILE *in = fopen(words[3], "rb"), *out = fopen(words[4], "wb");
  size_t in_sizes[MAX_TENSORS], out_sizes[MAX_TENSORS], runs = 0;
  if (!in || !out || api->inputs > MAX_TENSORS || api->outputs > MAX_TENSORS) return fail(words[3], "no such file, or too many tensors");
  for (uint32_t i = 0; i < api->inputs; ++i)
    if (!(inputs[i] = memory_of(i, api->input, &in_sizes[i]))) return fail("memory", "too little");
  for (uint32_t i = 0; i < api->outputs; ++i)
    if (!(outputs[i] = memory_of(i, api->output, &out_sizes[i]))) return fail("memory", "too little");
  for (;; ++runs) {
    uint32_t read = 0;
    while (read < api->inputs && fread(inputs[read], 1, in_sizes[read], in) == in_sizes[read]) ++read;
    if (read < api->inputs) break;
    if (api->run(net, (const void *const *)inputs, outputs) != TVMFLOW_OK) return fail("a run", api->last_error());
    for (uint32_t i = 0; i < api->outputs; ++i)
      if (fwrite(outputs[i], 1, out_sizes[i], out) != out_sizes[i]) return fail(words[4], "it cannot be written");
  }
  if (!runs) return fail(words[3], "the inputs of not one run");
  uint64_t before[COUNTERS] = {0}, after[COUNTERS] = {0}, nothing[COUNTERS] = {0};
  syscall(COUNTERS_CALL, nothing, sizeof nothing); /* subtract the cost of reading */
  syscall(COUNTERS_CALL, before, sizeof before);
  if (api->run(net, (const void *const *)inputs, outputs) != TVMFLOW_OK) return fail("a run", api->last_error());
  syscall(COUNTERS_CALL, after, sizeof after);
  for (int i = 0; i < COUNTERS; ++i) printf("%" PRIu64 "%c", after[i] - before[i] - (before[i] - nothing[i]), i + 1 < COUNTERS ? ' ' : '\n');
  api->destroy(net);
  return fclose(out) ? fail(words[4], "it cannot be written") : 0;
}
