/* The functions by which a network runs on a GPU: OpenCL or Vulkan. */
#ifndef TVMFLOW_NETWORK_GPU_H
#define TVMFLOW_NETWORK_GPU_H

#include "plan.h"

#define GPU_REASON 400 /* bytes of an error message */
#define GPU_NAME 256   /* bytes of a name from a driver */
/* Rows of the profile behind those of the steps, see runtime/include/tvmflow.h. */
enum { PROFILE_IMAGES, PROFILE_INPUTS, PROFILE_OUTPUTS, PROFILE_OTHERS };

typedef struct gpu_part gpu_part; /* each API has its own */

/* The driver's names of its device, itself and its version. */
typedef struct {
  char device[GPU_NAME], driver[GPU_NAME], version[GPU_NAME];
} gpu_identity;

/* Functions that return an int return 0 for success, else -1 with the reason in `why`, of GPU_REASON bytes. One thread at a time calls those of a part. */
typedef struct gpu_functions {
  /* Find the driver and a device, allocate arena, inputs and outputs, upload constants, compile the programs or load them from the
   * cache. Everything is freed on failure. `requested` is never NULL. */
  int (*open)(const tvmflow_gpu *requested, gpu_part **made, char *why);
  /* Run all steps once, in one submission if the API supports it. nanoseconds: of each step by the device's clock, followed by PROFILE_INPUTS and
   * PROFILE_OUTPUTS by the CPU's, added to the previous values; NULL without profiling. */
  int (*run)(gpu_part *part, const void *const *inputs, void *const *outputs, uint64_t *nanoseconds, char *why);
  void (*close)(gpu_part *part);
  void (*identify)(const gpu_part *part, gpu_identity *found);
} gpu_functions;

extern const gpu_functions gpu_opencl, gpu_vulkan;

#endif
