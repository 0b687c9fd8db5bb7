/* A pool of threads of one instance: they spin for a while, then sleep.
 *
 * A loop is divided into shares, one for each of few threads. Each of many takes its own first, so that it finds its data in its cache, then
 * those that nobody has taken: a thread that the system does not run, or that still sleeps, holds up nothing that it has not begun.
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

typedef struct pool pool;

#define POOL_SHARES_EACH 4 /* of a thread, where there are many */
#define POOL_MAX_SHARES (POOL_SHARES_EACH * TVMFLOW_MAX_THREADS)

struct pool_worker {
  pool *owner;
  uint32_t number;
  pthread_t thread;
};

struct pool {
  uint32_t threads; /* the caller's among them */
  uint64_t spin_ns;
  cpu_set_t allowed; /* CPUs for the workers */
  int avoided;       /* of these that on which the caller ran last; -1: it did not run yet */
  void *owner; /* of workspaces, set in each thread while it works */
  pool_task task;
  void *data;
  pool_group group;
  atomic_ullong work; /* number of the round << 32 | shares of it; workers wait for it to change */
  atomic_uint done;   /* shares of this round that have been computed */
  atomic_uint failed;
  atomic_uint sleeping;
  atomic_int ends;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  uint32_t started;
  struct pool_worker workers[TVMFLOW_MAX_THREADS];
  atomic_uint taken[POOL_MAX_SHARES]; /* the last round in which a share was taken */
};

/* Start threads - 1 threads. Returns TVMFLOW_NO_THREADS, with none of them left, when the system makes no more. */
tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, void *owner);
/* Run task(i) for every i below `tasks` (0: as many as there are threads); returns nonzero when one did. */
int pool_run(pool *used, pool_task task, void *data, int tasks);
void pool_stop(pool *stopped);
/* Called in a worker as it starts: says for whom it works. */
void pool_enter(void *owner, uint32_t number);

#endif
