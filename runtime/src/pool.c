#define _GNU_SOURCE
#include "pool.h"
#include "clock.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#define DEFAULT_SPIN_US 200u
#define MAX_CPUS 64
#define FEW_THREADS 4u /* threads up to this number get one share each: halves of a loop of 28 rows are equal, eighths are not */

static inline void relax_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

#define SHARE_BITS 16 /* of a word with a round and a share, or a count; in `work` the upper 7 bits of these are the team */
#define TEAM_SHIFT 9

static uint64_t round_in(unsigned long long word) { return word >> SHARE_BITS; }
static uint32_t share_in(unsigned long long word) { return (uint32_t)word & ((1u << SHARE_BITS) - 1); }
static unsigned long long pack_word(uint64_t round, uint32_t share) { return (unsigned long long)round << SHARE_BITS | share; }

static uint32_t team_in(unsigned long long run_worker) { return share_in(run_worker) >> TEAM_SHIFT; }
static uint32_t shares_in(unsigned long long run_worker) { return share_in(run_worker) & ((1u << TEAM_SHIFT) - 1); }
_Static_assert(POOL_SHARES_EACH * TVMFLOW_MAX_THREADS < 1u << TEAM_SHIFT, "shares have bits of their own");
_Static_assert(TVMFLOW_MAX_THREADS <= 64, "a bit each of `sleeping`, and seven for the team");

/* Return the first of a thread's own shares, which are consecutive. */
static uint32_t first_share(uint32_t team, uint32_t shares, uint32_t number) { return (uint32_t)((uint64_t)shares * number / team); }

/* Take the next share of a part of a round, from `first` to `end`; return `end` if none is left. All shares of a finished round are
 * taken, in it or in a later one. */
static uint32_t take_share(struct pool_part *part, uint64_t round, uint32_t first, uint32_t end) {
  unsigned long long last = atomic_load_explicit(&part->next, memory_order_relaxed);
  for (;;) {
    const uint32_t share = round_in(last) < round ? first : share_in(last);
    if (round_in(last) > round || share >= end) return end;
    if (atomic_compare_exchange_weak_explicit(&part->next, &last, pack_word(round, share + 1), memory_order_acquire, memory_order_relaxed)) return share;
  }
}

/* Compute a share: its tasks, at a distance of `shares`. The round cannot end before the share is counted, so that the fields read here are of this round. */
static void compute(pool *used, uint32_t share, uint32_t shares) {
  int failed = 0;
  for (int32_t task = (int32_t)share; task < used->group.num_task; task += (int32_t)shares) failed |= used->task(task, &used->group, used->data);
  if (failed) atomic_store_explicit(&used->failed, 1, memory_order_relaxed);
}

/* Compute shares of a round: those of this thread, and with many threads also those of others until none is left. */
static void run_shares(pool *used, uint32_t number, unsigned long long run_worker) {
  const uint64_t round = round_in(run_worker);
  const uint32_t shares = shares_in(run_worker), team = team_in(run_worker), parts = team > FEW_THREADS ? team : 1;
  uint32_t done = 0;
  for (uint32_t i = 0; i < parts; ++i) {
    const uint32_t of = number + i < team ? number + i : number + i - team, before = done;
    const uint32_t first = first_share(team, shares, of), end = first_share(team, shares, of + 1);
    for (uint32_t share; first < end && (share = take_share(&used->parts[of], round, first, end)) < end; ++done) compute(used, share, shares);
    if (done > before) atomic_store_explicit(&used->counts[number].done, pack_word(round, done), memory_order_release);
  }
}

/* Return how many shares of a round have been computed. */
static uint32_t count_done(pool *used, unsigned long long run_worker) {
  uint32_t done = 0;
  for (uint32_t number = 0; number < team_in(run_worker); ++number) {
    const unsigned long long count = atomic_load_explicit(&used->counts[number].done, memory_order_acquire);
    if (round_in(count) == round_in(run_worker)) done += share_in(count);
  }
  return done;
}

static int concerns(unsigned long long run_worker, uint32_t number, unsigned long long seen) { return run_worker != seen && number < team_in(run_worker); }

/* Wait for a round after `seen` that concerns a thread: spin first, then sleep. */
static unsigned long long wait_for_round(pool *owner, uint32_t number, unsigned long long seen) {
  uint64_t until = owner->spin_ns ? now_ns() + owner->spin_ns : 0;
  unsigned long long found;
  for (uint32_t turn = 0; until; ++turn) {
    found = atomic_load_explicit(&owner->work, memory_order_acquire);
    if (concerns(found, number, seen)) return found;
    relax_cpu();
    if (turn % 64 == 63 && now_ns() > until) break;
  }
  pthread_mutex_lock(&owner->mutex);
  atomic_fetch_or(&owner->sleeping, 1ull << number);
  while (found = atomic_load(&owner->work), !concerns(found, number, seen)) pthread_cond_wait(&owner->wake, &owner->mutex);
  atomic_fetch_and(&owner->sleeping, ~(1ull << number));
  pthread_mutex_unlock(&owner->mutex);
  return found;
}

static void *run_worker(void *argument) {
  struct pool_worker *self = argument;
  pool *owner = self->owner;
  owner->enter(owner->owner, self->number);
  for (unsigned long long seen = 0;;) {
    seen = wait_for_round(owner, self->number, seen);
    if (atomic_load_explicit(&owner->ends, memory_order_acquire)) return NULL;
    run_shares(owner, self->number, seen);
  }
}

/* Start a round of a team and return its word; wake only threads of the team. */
static unsigned long long start_round(pool *used, uint32_t team, uint32_t shares) {
  const unsigned long long next = pack_word(round_in(atomic_load_explicit(&used->work, memory_order_relaxed)) + 1, team << TEAM_SHIFT | shares);
  atomic_store(&used->work, next); /* sequentially consistent, as the read of `sleeping` is: at least one side sees the other's write */
  if (atomic_load(&used->sleeping) & ~0ull >> (64 - team)) {
    pthread_mutex_lock(&used->mutex);
    pthread_cond_broadcast(&used->wake);
    pthread_mutex_unlock(&used->mutex);
  }
  return next;
}

/* -- CPU affinity -- */

#ifdef __APPLE__ /* the scheduler decides: threads cannot be bound to CPUs */

static pool_cpu_set allowed_cpus(uint64_t cpu_mask) { return cpu_mask != 0; }

static int count_cpus(const pool_cpu_set *set) { return *set; }

static int restrict_to(pthread_t thread, const pool_cpu_set *set) { return (void)thread, *set ? -1 : 0; }

void pool_settle(pool *used) { (void)used; }

/* Return the number of fast cores, of any where all are alike. */
uint32_t pool_cpus(uint64_t cpu_mask) {
  int fast = 0;
  size_t size = sizeof fast;
  (void)cpu_mask; /* pool_start refuses it */
  if (!sysctlbyname("hw.perflevel0.physicalcpu", &fast, &size, NULL, 0) && fast > 0) return (uint32_t)fast;
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (uint32_t)online : TVMFLOW_MAX_THREADS;
}

#else

static int count_cpus(const pool_cpu_set *set) { return CPU_COUNT(set); }

static cpu_set_t set_of(uint64_t mask) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < MAX_CPUS; ++cpu)
    if (mask >> cpu & 1) CPU_SET(cpu, &set);
  return set;
}

/* Return the mask of the fastest kind of CPUs if Linux distinguishes kinds, else 0: any. */
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

/* Return the CPUs that the caller allows, by default the fastest of its own; empty if unknown. */
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

/* Linux tends to wake workers on the caller's CPU, where both wait for each other. Called once per run: in a sandbox the system call takes as long as a small loop. */
void pool_settle(pool *used) {
  if (used->threads == 1) return;
  int cpu = sched_getcpu();
  if (cpu == used->avoided || cpu < 0) return;
  cpu_set_t others = used->allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) < (int)used->started) others = used->allowed;
  for (uint32_t number = 1; number <= used->started; ++number) restrict_to(used->workers[number].thread, &others);
  used->avoided = cpu;
}

/* Return the number of allowed CPUs; with a mask, one more if the caller may run on another. */
uint32_t pool_cpus(uint64_t cpu_mask) {
  const cpu_set_t allowed = allowed_cpus(cpu_mask);
  cpu_set_t own, both;
  if (!CPU_COUNT(&allowed)) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : TVMFLOW_MAX_THREADS;
  }
  if (!cpu_mask || sched_getaffinity(0, sizeof own, &own)) return (uint32_t)CPU_COUNT(&allowed);
  CPU_AND(&both, &own, &allowed);
  return (uint32_t)CPU_COUNT(&allowed) + (CPU_COUNT(&both) < CPU_COUNT(&own));
}

#endif

tvmflow_status pool_start(pool *made, uint32_t threads, uint64_t cpu_mask, uint32_t spin_us, pool_enter enter, void *owner) {
  memset(made, 0, sizeof *made);
  made->allowed = allowed_cpus(cpu_mask);
  made->avoided = -1;
  made->threads = threads;
  made->enter = enter;
  made->owner = owner;
  made->spin_ns = spin_us == UINT32_MAX ? 0 : 1000u * (uint64_t)(spin_us ? spin_us : DEFAULT_SPIN_US);
  if (pool_cpus(cpu_mask) < threads) made->spin_ns = 0; /* a spinning thread would occupy another's core */
  if (pthread_mutex_init(&made->mutex, NULL)) return TVMFLOW_NO_THREADS;
  if (pthread_cond_init(&made->wake, NULL)) {
    pthread_mutex_destroy(&made->mutex);
    return TVMFLOW_NO_THREADS;
  }
  for (uint32_t number = 1; number < threads; ++number) {
    struct pool_worker *worker = &made->workers[number];
    worker->owner = made;
    worker->number = number;
    int failed = pthread_create(&worker->thread, NULL, run_worker, worker);
    if (!failed) {
      ++made->started;
      /* An affinity of our own choice may be refused, one that the caller requested must be set. */
      failed = count_cpus(&made->allowed) && restrict_to(worker->thread, &made->allowed) && cpu_mask;
    }
    if (failed) {
      pool_stop(made);
      return TVMFLOW_NO_THREADS;
    }
  }
  return TVMFLOW_OK;
}

/* Return the number of tasks of a loop of `extent` steps, 0 for unknown: none is empty if many threads share them. */
static uint32_t choose_tasks(uint32_t team, uint32_t extent) {
  if (team <= FEW_THREADS) return team;
  const uint32_t most = POOL_SHARES_EACH * team;
  if (!extent) return most;
  const uint32_t steps = (extent + most - 1) / most;
  return (extent + steps - 1) / steps;
}

static int run_serially(pool_task task, void *data, int tasks) {
  pool_group group = {NULL, tasks > 0 ? tasks : 1};
  int failed = 0;
  for (int32_t i = 0; i < group.num_task; ++i) failed |= task(i, &group, data);
  return failed;
}

int pool_run(pool *used, uint32_t team, pool_task task, void *data, int tasks, uint32_t extent) {
  if (team > used->threads) team = used->threads;
  if (team == 1) return run_serially(task, data, tasks);
  const uint32_t count = tasks > 0 ? (uint32_t)tasks : choose_tasks(team, extent), most = POOL_SHARES_EACH * team;
  const uint32_t shares = team <= FEW_THREADS ? team : count < most ? count : most;
  used->task = task;
  used->data = data;
  used->group = (pool_group){NULL, (int32_t)count};
  atomic_store_explicit(&used->failed, 0, memory_order_relaxed);
  const unsigned long long begun = start_round(used, team, shares);
  run_shares(used, 0, begun);
  uint64_t until = 0; /* reading the clock costs part of a small loop: short waits do without */
  for (uint32_t turn = 0; count_done(used, begun) < shares; ++turn) {
    relax_cpu();
    if (turn % 64 != 63) continue;
    if (!until) until = now_ns() + used->spin_ns;
    else if (now_ns() > until) sched_yield();
  }
  return (int)atomic_load_explicit(&used->failed, memory_order_relaxed);
}

void pool_stop(pool *stopped) {
  atomic_store_explicit(&stopped->ends, 1, memory_order_release);
  start_round(stopped, stopped->threads, 0);
  for (uint32_t number = 1; number <= stopped->started; ++number) pthread_join(stopped->workers[number].thread, NULL);
  pthread_cond_destroy(&stopped->wake);
  pthread_mutex_destroy(&stopped->mutex);
}
