/* Every step of every loop is run once, whatever the threads and the team, and whether or not the pool knows how long the loop is. */
#define _GNU_SOURCE
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STEPS 400
#define ROUNDS 300

static atomic_int hits[MOST_STEPS];

static void enter(void *owner, uint32_t number) { (void)owner, (void)number; }

/* As TVM's kernels divide a loop of *data steps. */
static int steps(int task, pool_group *group, void *data) {
  const int extent = *(const int *)data, each = (extent + group->num_task - 1) / group->num_task;
  for (int i = task * each; i < (task + 1) * each && i < extent; ++i) atomic_fetch_add(&hits[i], 1);
  return 0;
}

static int one_step(int task, pool_group *group, void *data) {
  (void)group;
  atomic_fetch_add(&hits[task], 1);
  return task == *(const int *)data;
}

static int each_once(int count) {
  int all = 1;
  for (int i = 0; i < MOST_STEPS; ++i) all &= atomic_exchange(&hits[i], 0) == (i < count);
  return all;
}

int main(int count, char **arguments) {
  const uint32_t threads = count > 1 ? (uint32_t)atoi(arguments[1]) : 1;
  pool *used = aligned_alloc(TVMFLOW_ALIGNMENT, (sizeof *used + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT);
  if (!used || pool_start(used, threads, 0, 0, enter, NULL)) return puts("no threads"), 1;
  for (int round = 0; round < ROUNDS; ++round) {
    const uint32_t team = round % 3 ? threads : 1 + (uint32_t)round / 3 % threads;
    int extent = 1 + round * 7 % (MOST_STEPS - 1), none = -1, fails = extent / 2;
    pool_settle(used);
    if (pool_run(used, team, steps, &extent, 0, (uint32_t)extent) || !each_once(extent)) return printf("a loop of %d steps\n", extent), 1;
    if (pool_run(used, team, steps, &extent, 0, 0) || !each_once(extent)) return printf("a loop of unknown length, %d\n", extent), 1;
    if (pool_run(used, team, steps, &extent, 0, 3) || !each_once(extent)) return printf("a loop of another length, %d\n", extent), 1;
    if (pool_run(used, team, one_step, &none, extent, 0) || !each_once(extent)) return printf("%d tasks\n", extent), 1;
    if (!pool_run(used, team, one_step, &fails, extent, 0) || !each_once(extent)) return printf("%d tasks of which one fails\n", extent), 1;
  }
  pool_stop(used);
  free(used);
  return 0;
}
