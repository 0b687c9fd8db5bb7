/* The accelerator's part of a network: its programs in memory that it sees, and running them. */
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

/* Put all programs into memory of the driver. `programs` has room for those of the plan, all zero. Returns 0, or -1 where it has none left. */
int device_load(device_part *part, const tvmflow_driver *driver, device_program *programs);
/* Give back what device_load took, also after a part of it. */
void device_unload(device_part *part);
/* Run program `at` on packed inputs into outputs, tensors as the plan's arguments. Returns 0, or -1 where the accelerator failed. */
int device_run(device_part *part, uint32_t at, const plan_any *arguments);

#endif
