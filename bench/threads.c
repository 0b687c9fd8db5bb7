/* Turns of a network, and what a line of the cache takes from one CPU to another and back. */
#define _GNU_SOURCE
#include "tvmflow.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define TRIPS 20000

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

static _Alignas(128) atomic_int flag;

static int keep_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set);
}

static void *answer(void *cpu) {
  keep_on(*(int *)cpu);
  for (int i = 0; i < TRIPS; ++i) {
    while (atomic_load_explicit(&flag, memory_order_acquire) != 2 * i + 1) continue;
    atomic_store_explicit(&flag, 2 * i + 2, memory_order_release);
  }
  return NULL;
}

/* Return the seconds of a round trip between two CPUs, -1 where there are no such threads. */
double round_trip(int a, int b) {
  cpu_set_t before;
  pthread_t other;
  atomic_store(&flag, 0);
  if (sched_getaffinity(0, sizeof before, &before) || keep_on(a)) return -1;
  if (pthread_create(&other, NULL, answer, &b)) return sched_setaffinity(0, sizeof before, &before), -1;
  double begin = 0;
  for (int i = 0; i < TRIPS; ++i) {
    if (i == TRIPS / 4) begin = now_s();
    atomic_store_explicit(&flag, 2 * i + 1, memory_order_release);
    while (atomic_load_explicit(&flag, memory_order_acquire) != 2 * i + 2) continue;
  }
  const double took = (now_s() - begin) / (TRIPS - TRIPS / 4);
  pthread_join(other, NULL);
  return sched_setaffinity(0, sizeof before, &before) ? -1 : took;
}
