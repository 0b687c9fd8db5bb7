/* A network on a GPU: what the walk over the plan asks of OpenCL or Vulkan. */
#ifndef TVMFLOW_NETWORK_GPU_H
#define TVMFLOW_NETWORK_GPU_H

#include "plan.h"

#define GPU_REASON 400 /* bytes of a text that says why something failed */
#define GPU_NAME 256   /* bytes of a name that a driver tells */
/* Rows of the profile behind those of the steps; runtime/include/tvmflow.h says which. */
enum { PROFILE_IMAGES, PROFILE_INPUTS, PROFILE_OUTPUTS, PROFILE_OTHERS };

typedef struct gpu_part gpu_part; /* each API has its own */

/* What a driver calls its device, itself and its version. */
typedef struct {
  char device[GPU_NAME], driver[GPU_NAME], version[GPU_NAME];
} gpu_identity;

/* Functions that return an int return 0 for success, else -1 with the reason in `why`, of GPU_REASON bytes. One thread at a time calls those of a part. */
typedef struct gpu_functions {
  /* Find the driver and a device, make memory for arena, inputs and outputs, bring constants there, compile the programs or take them from the
   * cache. Nothing stays where it fails. `wanted` is never NULL. */
  int (*open)(const tvmflow_gpu *wanted, gpu_part **made, char *why);
  /* Run all steps once, in one submission where the API has that. nanoseconds: of each step on the device's clock, behind them PROFILE_INPUTS and
   * PROFILE_OUTPUTS on the CPU's, added to what is there; NULL where nobody asks. */
  int (*run)(gpu_part *part, const void *const *inputs, void *const *outputs, uint64_t *nanoseconds, char *why);
  void (*close)(gpu_part *part);
  void (*identify)(const gpu_part *part, gpu_identity *found);
} gpu_functions;

extern const gpu_functions gpu_opencl, gpu_vulkan;

#endif
