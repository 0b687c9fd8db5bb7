/* Allocate a random number of cache lines, so that later allocations start at another offset in their page: a measurement must not depend
 * on one placement. Returns NULL on failure. */
#ifndef TVMFLOW_RANDOM_PAD_H
#define TVMFLOW_RANDOM_PAD_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { PAD_LINE = 64, PAD_LINES = 64 };

static inline void *random_pad(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint32_t mixed = (uint32_t)now.tv_nsec * 2654435769u; /* clocks that tick rarely leave its low bits alone */
  return malloc((mixed >> 26) % PAD_LINES * PAD_LINE + 1);
}

#endif
