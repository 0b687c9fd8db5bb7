/* The clock of profiles and of waiting threads. */
#ifndef TVMFLOW_CLOCK_H
#define TVMFLOW_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

#endif
