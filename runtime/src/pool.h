/* The thread pool of an instance: threads spin for a while, then sleep.
 *
 * A loop runs on a team, the first threads of the pool, and is divided into shares: one for each thread of a small team. In a large team each thread takes its own shares first, whose data are in its cache, then
 * those that no other thread has taken: a thread that is preempted or asleep delays only the share that it has begun.
 *
 * Data that one thread writes while others read other data are on separate cache lines: fetching a line that another core wrote takes
 * 0.1 us, and all threads do so at the start and end of each loop of a network.
 */
#ifndef TVMFLOW_POOL_H
#define TVMFLOW_POOL_H

#include "tvmflow.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* The parallel loop as TVM's kernels read it. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} pool_group;

typedef int (*pool_task)(int task, pool_group *group, void *data);
/* Called in a worker when it starts, with the pool's owner and the worker's number. */
typedef void (*pool_enter)(void *owner, uint32_t number);

typedef struct pool pool;

#if defined(__wasi__) || defined(__APPLE__) /* has no threads (runtime/wasm/pool.c), or cannot bind them to CPUs */
typedef unsigned char pool_cpu_set;
#else
typedef cpu_set_t pool_cpu_set;
#endif

#define POOL_SHARES_EACH 4 /* shares of a thread in a large team */

#define POOL_APART 128     /* bytes: two cache lines, since processors fetch pairs of them */

struct pool_worker {
  pool *owner;
  uint32_t number;
  pthread_t thread;
};

/* The next of a thread's own shares of a loop. Written by the threads that take shares. */
struct pool_part {
  _Alignas(TVMFLOW_ALIGNMENT) atomic_ullong next; /* number of the round, and of the share */
  char apart[POOL_APART - sizeof(atomic_ullong)];
};

/* The number of shares that a thread has computed, its own and others'. Written by that thread. */
struct pool_count {
  _Alignas(TVMFLOW_ALIGNMENT) atomic_ullong done; /* number of the round, and how many */
  char apart[POOL_APART - sizeof(atomic_ullong)];
};

struct pool {
  uint32_t threads; /* including the caller's */
  uint64_t spin_ns;
  pool_cpu_set allowed; /* CPUs for the workers */
  int avoided;       /* the CPU on which the caller ran last; -1: not yet known */
  pool_enter enter; /* called in each worker as it starts, with `owner` */
  void *owner;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  uint32_t started;
  struct pool_worker workers[TVMFLOW_MAX_THREADS];
  atomic_uint failed;
  atomic_ullong sleeping; /* bit i: thread i */
  /* The fields of a round, written at its start. */
  char apart[POOL_APART];
  _Alignas(TVMFLOW_ALIGNMENT) atomic_ullong work; /* number of the round, its team and how many shares it has; workers wait for it to change */
  pool_task task;
  void *data;
  pool_group group;
  atomic_int ends;
  struct pool_part parts[TVMFLOW_MAX_THREADS];
  struct pool_count counts[TVMFLOW_MAX_THREADS];
};

/* Return how many threads, including the caller's, get a CPU each. */
uint32_t pool_cpus(uint64_t cpu_mask);
/* Start threads - 1 threads, each of which calls enter(owner, number) first. Return TVMFLOW_NO_THREADS, with all of them stopped, if the system creates no more. */
tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, pool_enter enter, void *owner);
/* Keep the workers off the caller's CPU if there are enough others; call it before the loops of a run. */
void pool_settle(pool *used);
/* Run task(i) for every i below `tasks` on `team` threads, at most all; return nonzero if one did. tasks 0: a suitable number for a loop of `extent`
 * steps that each task divides by the number of tasks; extent 0: unknown. */
int pool_run(pool *used, uint32_t team, pool_task task, void *data, int tasks, uint32_t extent);
void pool_stop(pool *stopped);

#endif
