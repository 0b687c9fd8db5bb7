/* A pool of threads of one instance: they spin for a while, then sleep. */
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
  atomic_uint round;      /* raised for every loop; workers wait for it to change */
  atomic_uint working;    /* workers that are not done with this round */
  atomic_uint failed;
  atomic_uint sleeping;
  atomic_int ends;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  uint32_t started;
  struct pool_worker workers[TVMFLOW_MAX_THREADS];
};

/* Start threads - 1 threads. Returns TVMFLOW_NO_THREADS, with none of them left, when the system makes no more. */
tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, void *owner);
/* Run task(i) for every i below `tasks` (0: as many as there are threads); returns nonzero when one did. */
int pool_run(pool *used, pool_task task, void *data, int tasks);
void pool_stop(pool *stopped);
/* Called in a worker as it starts: says for whom it works. */
void pool_enter(void *owner, uint32_t number);

#endif
