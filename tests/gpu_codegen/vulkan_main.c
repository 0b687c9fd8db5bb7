/* Runs the network that it is linked with: `vulkan_main library cache device runs inputs outputs`, "-" for none. Times of steps go to stdout. */
#include "network_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int said(const char *why) {
  fprintf(stderr, "%s\n", why);
  return 1;
}

int main(int count, char **words) {
  char why[GPU_REASON] = "";
  const void *inputs[64];
  void *outputs[64];
  gpu_part *part = NULL;
  int failed = 0;
  if (count != 7) return said("six words");
  tvmflow_gpu wanted = {sizeof wanted, words[1][0] == '-' ? NULL : words[1], words[3][0] == '-' ? NULL : words[3], words[2][0] == '-' ? NULL : words[2]};
  FILE *from = fopen(words[5], "rb"), *to = fopen(words[6], "wb");
  if (!from || !to) return said("no files");
  for (uint32_t i = 0; i < plan_api.inputs; ++i) {
    void *bytes = malloc(plan.inputs[i].size);
    if (fread(bytes, 1, plan.inputs[i].size, from) != plan.inputs[i].size) return said("inputs are short");
    inputs[i] = bytes;
  }
  for (uint32_t i = 0; i < plan_api.outputs; ++i) outputs[i] = calloc(1, plan.outputs[i].size);
  uint64_t *times = calloc(plan.step_count + PROFILE_OTHERS, sizeof *times);
  const int runs = atoi(words[4]);
  dlopen("libvulkan_lvp.so", RTLD_NOW | RTLD_NODELETE); /* what the driver never frees is not to look lost when it goes */
  failed = gpu_vulkan.open(&wanted, &part, why);
  if (failed) said(why);
  for (int i = 0; i < abs(runs) && part; ++i) {
    failed = gpu_vulkan.run(part, inputs, outputs, i % 2 || runs < 0 ? times : NULL, why);
    if (failed) said(why);
  }
  gpu_vulkan.close(part);
  for (uint32_t i = 0; i < plan_api.outputs; ++i) fwrite(outputs[i], 1, plan.outputs[i].size, to), free(outputs[i]);
  for (uint32_t i = 0; i < plan_api.inputs; ++i) free((void *)(uintptr_t)inputs[i]);
  for (uint32_t i = 0; i < plan.step_count; ++i) printf("%llu\n", (unsigned long long)times[i]);
  free(times);
  fclose(from);
  fclose(to);
  return failed != 0;
}
