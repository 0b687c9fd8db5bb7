/* Time turns of a network in C, since Python's overhead would be part of the time of a small one. */
#include "tvmflow.h"

#include <time.h>

static double now_s(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Run for so many seconds, at most `most` times; returns how many times, each of which took times[i] seconds, or -1. */
long turn(const tvmflow_api *api, tvmflow_instance *net, const void *const *inputs, void *const *outputs, double seconds, double *times, long most) {
  const double begin = now_s();
  double last = begin;
  for (long i = 0; i < most; ++i) {
    if (api->run(net, inputs, outputs)) return -1;
    const double now = now_s();
    times[i] = now - last;
    last = now;
    if (now - begin > seconds) return i + 1;
  }
  return most;
}
