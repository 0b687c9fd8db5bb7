/* The pool of a system without threads (WebAssembly): loops run on the caller's thread. */
#include "pool.h"

#include <string.h>

uint32_t pool_cpus(uint64_t cpu_mask) { return (void)cpu_mask, 1; }

tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, pool_enter enter, void *owner) {
  (void)cpu_mask, (void)spin_us, (void)enter, (void)owner;
  memset(made, 0, sizeof *made);
  made->threads = threads;
  return threads == 1 ? TVMFLOW_OK : TVMFLOW_NO_THREADS;
}

void pool_settle(pool *used) { (void)used; }

int pool_run(pool *used, uint32_t team, pool_task task, void *data, int tasks, uint32_t extent) {
  (void)used, (void)team, (void)extent;
  pool_group group = {NULL, tasks > 0 ? tasks : 1};
  int failed = 0;
  for (int32_t i = 0; i < group.num_task; ++i) failed |= task(i, &group, data);
  return failed;
}

void pool_stop(pool *stopped) { (void)stopped; }
