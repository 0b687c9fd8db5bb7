/* The accelerator's programs of a network, in memory that it accesses. */
#ifndef TVMFLOW_DEVICE_H
#define TVMFLOW_DEVICE_H

#include "plan.h"

typedef struct {
  tvmflow_memory memory, code;
} device_program;

typedef struct {
  tvmflow_driver driver;
  device_program *programs; /* one per program of the plan */
} device_part;

/* Copy all programs to memory of the driver. `programs`: zeros, one per program of the plan. Return 0, or -1 if out of memory. */
int device_load(device_part *part, const tvmflow_driver *driver, device_program *programs);
/* Release the memory of device_load, also after a failure. */
void device_unload(device_part *part);
/* Run program `at` on packed inputs into outputs, tensors as the plan's arguments. Return 0, or -1 if the accelerator failed. */
int device_run(device_part *part, uint32_t at, const plan_any *arguments);

#endif
