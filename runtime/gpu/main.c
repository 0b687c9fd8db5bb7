/* Run the GPU probe in a separate process, since drivers crash: gpu-probe [--opencl LIBRARY] [--vulkan LIBRARY]; "" skips an API. */
#include "gpu_probe.h"

#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments) {
  const char *opencl = NULL, *vulkan = NULL;
  for (int i = 1; i + 1 < count; i += 2) {
    if (!strcmp(arguments[i], "--opencl")) opencl = arguments[i + 1];
    if (!strcmp(arguments[i], "--vulkan")) vulkan = arguments[i + 1];
  }
  if (!opencl || *opencl) probe_opencl(stdout, opencl);
  if (!vulkan || *vulkan) probe_vulkan(stdout, vulkan);
  fflush(stdout);
  _Exit(0); /* drivers may crash at exit, too */
}
