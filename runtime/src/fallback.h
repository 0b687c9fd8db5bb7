/* A library for a GPU beside this one, which is for the CPU: it computes the runs while it can be trusted. */
#ifndef TVMFLOW_FALLBACK_H
#define TVMFLOW_FALLBACK_H

#include "network_gpu.h"

/* Zeros: there is none. reason: why it does not compute; "" while it does. */
typedef struct {
  const tvmflow_api *api;
  tvmflow_instance *instance; /* stays until the end, also of a GPU that was given up: what hangs is not waited for meanwhile */
  int computes;
  char reason[GPU_REASON];
} fallback;

/* Whether a library may stand in for this one; NULL, or why not. */
const char *fallback_fault(const tvmflow_api *api);
/* Make an instance on the GPU and have it compute what `cpu`, an instance of this library, computes. sample: pointers to the inputs of a run; NULL
 * for numbers of ours. Returns nonzero where there is no memory for that. */
int fallback_start(fallback *made, const tvmflow_api *api, const tvmflow_gpu *gpu, tvmflow_instance *cpu, const void *const *sample);
/* Whether a call of the GPU's library went well; where not, it is given up. */
int fallback_did(fallback *used, tvmflow_status status);
void fallback_close(fallback *closed);

#endif
