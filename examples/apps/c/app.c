/* Run a network on its one input, read from a file of raw values, and print the outputs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tvmflow.h"

const tvmflow_api *tvmflow_network(void); /* every library has it; the name of its own, for several in one app, is in manifest.json */

static void *aligned(size_t size) {
  return aligned_alloc(TVMFLOW_ALIGNMENT, (size + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT);
}

static int fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  return EXIT_FAILURE;
}

static void show(const tvmflow_api *api, const tvmflow_tensor *output, const void *memory) {
  const float *scores = memory;
  uint32_t best[5], count = (uint32_t)(output->size / sizeof *scores), k = count < 5 ? count : 5;
  if (output->dtype != TVMFLOW_FLOAT32 || api->top_k(scores, count, k, best)) return;
  for (uint32_t i = 0; i < k; ++i)
    printf("%10.4f  %" PRIu32 " %s\n", scores[best[i]], best[i], best[i] < api->label_count ? api->labels[best[i]] : "");
}

int main(int count, char **words) {
  const tvmflow_api *api = tvmflow_network();
  tvmflow_tensor input, output;
  tvmflow_instance *net = NULL;
  if (count != 2) return fail("usage", "app FILE");
  if (api->abi_version != TVMFLOW_ABI_VERSION) return fail(api->network, "made for another tvmflow.h");
  if (api->inputs != 1 || api->outputs != 1) return fail(api->network, "this app is for one input and one output");
  api->input(0, &input);
  api->output(0, &output);
  void *x = aligned(input.size), *y = aligned(output.size);
  FILE *file = fopen(words[1], "rb");
  if (!x || !y) return fail(words[1], "no memory");
  if (!file || fread(x, 1, input.size, file) != input.size) return fail(words[1], "no file of the input's size");
  fclose(file);
  if (api->create(NULL, &net) || api->run(net, (const void *[]){x}, (void *[]){y})) return fail(api->network, api->last_error());
  printf("%s\n", api->network);
  show(api, &output, y);
  api->destroy(net);
  free(x), free(y);
  return EXIT_SUCCESS;
}
