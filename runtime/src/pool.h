/* A pool of threads of one instance: they spin for a while, then sleep.
 *
 * A loop has a team of threads, the first of all, and is divided into shares, one for each of few threads. Each of many takes its own first, so that it finds its data in its cache, then
 * those that nobody has taken: a thread that the system does not run, or that still sleeps, holds up nothing that it has not begun.
 *
 * What one thread writes while others read something else lies in lines of the cache of its own: fetching a line that another core wrote takes
 * 0.1 us, and all threads do it at the beginning and at the end of each of a network's loops.
 */
#ifndef TVMFLOW_POOL_H
#define TVMFLOW_POOL_H

#include "tvmflow.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* What TVM's kernels see of a parallel loop. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} pool_group;

typedef int (*pool_task)(int task, pool_group *group, void *data);
/* Called in a worker as it starts: for whom it works, and which thread of its pool it is. */
typedef void (*pool_enter)(void *owner, uint32_t number);

typedef struct pool pool;

#define POOL_SHARES_EACH 4 /* of a thread, where there are many */

#define POOL_APART 128     /* bytes: two lines of the cache, since processors fetch pairs of them */

struct pool_worker {
  pool *owner;
  uint32_t number;
  pthread_t thread;
};

/* A thread's own shares of a loop: which of them is the next. Written by the threads that take them. */
struct pool_part {
  _Alignas(TVMFLOW_ALIGNMENT) atomic_ullong next; /* number of the round, and of the share */
  char apart[POOL_APART - sizeof(atomic_ullong)];
};

/* How many shares a thread has computed, its own and others'. Written by that thread. */
struct pool_count {
  _Alignas(TVMFLOW_ALIGNMENT) atomic_ullong done; /* number of the round, and how many */
  char apart[POOL_APART - sizeof(atomic_ullong)];
};

struct pool {
  uint32_t threads; /* the caller's among them */
  uint64_t spin_ns;
  cpu_set_t allowed; /* CPUs for the workers */
  int avoided;       /* of these that on which the caller ran last; -1: it did not run yet */
  pool_enter enter; /* called in each worker as it starts, with `owner` */
  void *owner;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  uint32_t started;
  struct pool_worker workers[TVMFLOW_MAX_THREADS];
  atomic_uint failed;
  atomic_ullong sleeping; /* bit i: thread i */
  /* Of the round, written as it begins. */
  char apart[POOL_APART];
  _Alignas(TVMFLOW_ALIGNMENT) atomic_ullong work; /* number of the round, its team and how many shares it has; workers wait for it to change */
  pool_task task;
  void *data;
  pool_group group;
  atomic_int ends;
  struct pool_part parts[TVMFLOW_MAX_THREADS];
  struct pool_count counts[TVMFLOW_MAX_THREADS];
};

/* How many threads find a CPU each, the caller's among them. */
uint32_t pool_cpus(uint64_t cpu_mask);
/* Start threads - 1 threads, each of which calls enter(owner, number) first. Returns TVMFLOW_NO_THREADS, with none of them left, when the system makes no more. */
tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, pool_enter enter, void *owner);
/* Before the loops of a run: keep the workers off the caller's CPU, where there are enough others. */
void pool_settle(pool *used);
/* Run task(i) for every i below `tasks` on `team` threads, at most all; returns nonzero when one did. tasks 0: as many as are useful, of a loop of `extent`
 * steps that each divides by their number; extent 0: of an unknown number. */
int pool_run(pool *used, uint32_t team, pool_task task, void *data, int tasks, uint32_t extent);
void pool_stop(pool *stopped);

#endif
