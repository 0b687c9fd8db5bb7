/* A library for a GPU that runs instead of this one, which is for the CPU, until it fails. */
#ifndef TVMFLOW_FALLBACK_H
#define TVMFLOW_FALLBACK_H

#include "network_gpu.h"

/* All zero: there is none. reason: of its failure; "" while it is in use. */
typedef struct {
  const tvmflow_api *api;
  tvmflow_instance *instance; /* kept until the end even after a failure, since destroying it may wait for a hanging device */
  int computes;
  char reason[GPU_REASON];
} fallback;

/* Return NULL if a library can run instead of this one, else the reason. */
const char *fallback_fault(const tvmflow_api *api);
/* Create an instance on the GPU and compare its outputs with those of `cpu`, an instance of this library. sample: pointers to the inputs of a run; NULL
 * for random numbers. Return nonzero if out of memory. */
int fallback_start(fallback *made, const tvmflow_api *api, const tvmflow_gpu *gpu, tvmflow_instance *cpu, const void *const *sample);
/* Return whether a call of the GPU's library succeeded; stop using it otherwise. */
int fallback_did(fallback *used, tvmflow_status status);
void fallback_close(fallback *closed);

#endif
