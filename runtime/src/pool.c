#define _GNU_SOURCE
#include "pool.h"
#include "clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SPIN_US 200u
#define MAX_CPUS 64

static inline void relax_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

static int run_share(pool *used, uint32_t number) {
  int failed = 0;
  for (int32_t task = (int32_t)number; task < used->group.num_task; task += (int32_t)used->threads)
    failed |= used->task(task, &used->group, used->data);
  return failed;
}

/* Wait until the round is another than `seen`: spinning first, then asleep. */
static uint32_t next_round(pool *owner, uint32_t seen) {
  uint64_t until = owner->spin_ns ? now_ns() + owner->spin_ns : 0;
  for (uint32_t turn = 0; until; ++turn) {
    uint32_t found = atomic_load_explicit(&owner->round, memory_order_acquire);
    if (found != seen) return found;
    relax_cpu();
    if (turn % 64 == 63 && now_ns() > until) break;
  }
  pthread_mutex_lock(&owner->mutex);
  atomic_fetch_add(&owner->sleeping, 1);
  uint32_t found;
  while ((found = atomic_load(&owner->round)) == seen) pthread_cond_wait(&owner->wake, &owner->mutex);
  atomic_fetch_sub(&owner->sleeping, 1);
  pthread_mutex_unlock(&owner->mutex);
  return found;
}

static void *work(void *argument) {
  struct pool_worker *self = argument;
  pool *owner = self->owner;
  pool_enter(owner->owner, self->number);
  for (uint32_t seen = 0;;) {
    seen = next_round(owner, seen);
    if (atomic_load_explicit(&owner->ends, memory_order_acquire)) return NULL;
    if (run_share(owner, self->number)) atomic_store(&owner->failed, 1);
    atomic_fetch_sub_explicit(&owner->working, 1, memory_order_release);
  }
}

static void announce(pool *used) {
  atomic_fetch_add(&used->round, 1); /* sequentially consistent, as is the read of `sleeping`: one of both sees the other */
  if (atomic_load(&used->sleeping)) {
    pthread_mutex_lock(&used->mutex);
    pthread_cond_broadcast(&used->wake);
    pthread_mutex_unlock(&used->mutex);
  }
}

/* -- which CPUs -- */

static cpu_set_t set_of(uint64_t mask) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < MAX_CPUS; ++cpu)
    if (mask >> cpu & 1) CPU_SET(cpu, &set);
  return set;
}

/* The CPUs of the fastest kind where Linux tells kinds apart, else 0: any. */
static uint64_t fastest_cpus(void) {
  uint64_t fastest = 0;
  long best = 0, least = 0;
  for (int cpu = 0; cpu < MAX_CPUS; ++cpu) {
    char path[80];
    long capacity = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", cpu);
    FILE *file = fopen(path, "re");
    if (!file) break;
    if (fscanf(file, "%ld", &capacity) != 1) capacity = 0;
    fclose(file);
    if (!least || capacity < least) least = capacity;
    if (capacity > best) best = capacity, fastest = 0;
    if (capacity == best) fastest |= (uint64_t)1 << cpu;
  }
  return best > least ? fastest : 0;
}

/* The CPUs that the caller allows, or of those that it has the fastest; empty where the system does not say. */
static cpu_set_t allowed_cpus(uint64_t cpu_mask) {
  cpu_set_t own, wanted = set_of(cpu_mask ? cpu_mask : fastest_cpus());
  if (cpu_mask) return wanted;
  if (sched_getaffinity(0, sizeof own, &own)) CPU_ZERO(&own);
  CPU_AND(&wanted, &wanted, &own);
  return CPU_COUNT(&wanted) ? wanted : own;
}

static int restrict_to(pthread_t thread, const cpu_set_t *set) {
#ifdef __ANDROID__
  (void)thread, (void)set; /* bionic has no pthread_setaffinity_np: the scheduler decides */
  return 0;
#else
  return pthread_setaffinity_np(thread, sizeof *set, set);
#endif
}

/* Keep the workers off the caller's CPU, where there are enough others: the system likes to wake them there, and each waits for the other. */
static void avoid_caller(pool *used) {
  int cpu = sched_getcpu();
  if (cpu == used->avoided || cpu < 0) return;
  cpu_set_t others = used->allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) < (int)used->started) others = used->allowed;
  for (uint32_t number = 1; number <= used->started; ++number) restrict_to(used->workers[number].thread, &others);
  used->avoided = cpu;
}

tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, void *owner) {
  memset(made, 0, sizeof *made);
  made->allowed = allowed_cpus(cpu_mask);
  made->avoided = -1;
  made->threads = threads;
  made->owner = owner;
  made->spin_ns = spin_us == UINT32_MAX ? 0 : 1000u * (uint64_t)(spin_us ? spin_us : DEFAULT_SPIN_US);
  /* A thread that spins would take another's core; the caller's need not be among those that it allows. */
  long cpus = CPU_COUNT(&made->allowed) ? CPU_COUNT(&made->allowed) + (cpu_mask != 0) : sysconf(_SC_NPROCESSORS_ONLN);
  if (cpus < (long)threads) made->spin_ns = 0;
  if (pthread_mutex_init(&made->mutex, NULL)) return TVMFLOW_NO_THREADS;
  if (pthread_cond_init(&made->wake, NULL)) {
    pthread_mutex_destroy(&made->mutex);
    return TVMFLOW_NO_THREADS;
  }
  for (uint32_t number = 1; number < threads; ++number) {
    struct pool_worker *worker = &made->workers[number];
    worker->owner = made;
    worker->number = number;
    int failed = pthread_create(&worker->thread, NULL, work, worker);
    if (!failed) {
      ++made->started;
      /* A wish of ours may be refused, one of the caller's not. */
      failed = CPU_COUNT(&made->allowed) && restrict_to(worker->thread, &made->allowed) && cpu_mask;
    }
    if (failed) {
      pool_stop(made);
      return TVMFLOW_NO_THREADS;
    }
  }
  return TVMFLOW_OK;
}

int pool_run(pool *used, pool_task task, void *data, int tasks) {
  used->task = task;
  used->data = data;
  used->group = (pool_group){NULL, tasks > 0 ? tasks : (int32_t)used->threads};
  if (used->threads == 1) return run_share(used, 0);
  avoid_caller(used);
  atomic_store_explicit(&used->failed, 0, memory_order_relaxed);
  atomic_store_explicit(&used->working, used->threads - 1, memory_order_relaxed);
  announce(used);
  int failed = run_share(used, 0);
  uint64_t until = now_ns() + used->spin_ns;
  for (uint32_t turn = 0; atomic_load_explicit(&used->working, memory_order_acquire); ++turn) {
    relax_cpu();
    if (turn % 64 == 63 && now_ns() > until) sched_yield();
  }
  return failed | (int)atomic_load_explicit(&used->failed, memory_order_relaxed);
}

void pool_stop(pool *stopped) {
  atomic_store_explicit(&stopped->ends, 1, memory_order_release);
  announce(stopped);
  for (uint32_t number = 1; number <= stopped->started; ++number) pthread_join(stopped->workers[number].thread, NULL);
  pthread_cond_destroy(&stopped->wake);
  pthread_mutex_destroy(&stopped->mutex);
}
