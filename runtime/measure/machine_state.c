#define _GNU_SOURCE
#include "machine_state.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { LOOP = 16000, LOOPS = 8, ROUND_TRIPS = 50, BATCHES = 12, LOOKS = 4096 };

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Two threads that exchange a cache line. */
typedef struct {
  _Alignas(128) atomic_int turn; /* odd: the far thread's turn; even: the near one's; negative: finished */
  _Alignas(128) int cpus[2];
  sem_t begins; /* the far thread must not spin before both run: it may be on the CPU of the thread that starts them */
  uint64_t end_ns;
  double round_trip_ns;
} pair;

static int pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set);
}

/* Start a thread on a CPU, with a higher priority if the system allows it: it ends soon. */
static int start(pthread_t *thread, int cpu, void *(*function)(void *), void *argument) {
#ifdef __GLIBC__
  pthread_attr_t first;
  const struct sched_param priority = {.sched_priority = 1};
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_attr_init(&first);
  pthread_attr_setinheritsched(&first, PTHREAD_EXPLICIT_SCHED);
  pthread_attr_setschedpolicy(&first, SCHED_FIFO);
  pthread_attr_setschedparam(&first, &priority);
  pthread_attr_setaffinity_np(&first, sizeof set, &set); /* otherwise both may start on one CPU, and the first would keep the other from migrating */
  const int failed = pthread_create(thread, &first, function, argument);
  pthread_attr_destroy(&first);
  if (!failed) return 0;
#else
  (void)cpu;
#endif
  return pthread_create(thread, NULL, function, argument);
}

#define ADD(x)                         \
  do {                                 \
    x += 3;                            \
    __asm__ volatile("" : "+r"(x));    \
  } while (0)

/* Return the least time of several loops, since interruptions only lengthen them. No addition depends on another, so that the loop saturates a core: a
 * dependent one would not show another process on the same core, where kernels take a third longer. */
static double loop_ns(void) {
  double least = -1;
  for (int i = 0; i < LOOPS; ++i) {
    volatile uintptr_t kept = 1;
    uintptr_t a = kept, b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    const uint64_t begin = now_ns();
    for (int k = 0; k < LOOP; ++k) {
      ADD(a); ADD(b); ADD(c); ADD(d); ADD(e); ADD(f); ADD(g); ADD(h);
    }
    kept = a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
    const double took = (double)(now_ns() - begin);
    if (least < 0 || took < least) least = took;
  }
  return least;
}

/* Wait for a turn; return 0 if the other thread has stopped, or on timeout. */
static int wait_for(pair *both, int turn) {
  for (unsigned look = 0;; ++look) {
    const int now = atomic_load_explicit(&both->turn, memory_order_acquire);
    if (now == turn) return 1;
    if (now < 0) return 0;
    if (look % LOOKS == LOOKS - 1 && now_ns() > both->end_ns) {
      atomic_store_explicit(&both->turn, -1, memory_order_release);
      return 0;
    }
  }
}

static void *far_thread(void *argument) {
  pair *both = argument;
  if (pin_to(both->cpus[1])) {
    atomic_store_explicit(&both->turn, -1, memory_order_release);
    return NULL;
  }
  while (sem_wait(&both->begins)) continue;
  for (int turn = 1; wait_for(both, turn); turn += 2) {
    int expected = turn; /* never over a -1 */
    if (!atomic_compare_exchange_strong_explicit(&both->turn, &expected, turn + 1, memory_order_acq_rel, memory_order_acquire)) break;
  }
  return NULL;
}

static void *near_thread(void *argument) {
  pair *both = argument;
  sem_post(&both->begins);
  if (pin_to(both->cpus[0])) {
    atomic_store_explicit(&both->turn, -1, memory_order_release);
    return NULL;
  }
  int turn = 0;
  for (int batch = 0; batch < BATCHES && now_ns() < both->end_ns; ++batch) {
    const uint64_t begin = now_ns();
    for (int i = 0; i < ROUND_TRIPS; ++i, turn += 2) {
      int expected = turn;
      if (!atomic_compare_exchange_strong_explicit(&both->turn, &expected, turn + 1, memory_order_acq_rel, memory_order_acquire)) return NULL;
      if (!wait_for(both, turn + 2)) return NULL;
    }
    const double took = (double)(now_ns() - begin) / ROUND_TRIPS;
    if (batch && (both->round_trip_ns < 0 || took < both->round_trip_ns)) both->round_trip_ns = took; /* the first waits for the thread to start */
  }
  atomic_store_explicit(&both->turn, -1, memory_order_release);
  return NULL;
}

typedef struct {
  int cpu;
  double loop_ns;
} single;

static void *loop_thread(void *argument) {
  single *one = argument;
  if (!pin_to(one->cpu)) one->loop_ns = loop_ns();
  return NULL;
}

int machine_state(const int *cpus, int count, unsigned limit_us, double *loops_ns, double *round_trips_ns) {
  int measured = 0;
  pthread_t threads[2];
  if (count > MACHINE_STATE_CPUS) count = MACHINE_STATE_CPUS;
  for (int i = 0; i < count; ++i) { /* one after the other: two CPUs may be one core */
    single one = {cpus[i], -1};
    if (!start(&threads[0], cpus[i], loop_thread, &one)) pthread_join(threads[0], NULL);
    loops_ns[i] = one.loop_ns;
    round_trips_ns[i] = !i && one.loop_ns >= 0 ? 0 : -1;
    measured += one.loop_ns >= 0;
    if (i) {
      pair both = {.turn = 0, .cpus = {cpus[0], cpus[i]}, .end_ns = now_ns() + 1000u * (uint64_t)limit_us, .round_trip_ns = -1};
      sem_init(&both.begins, 0, 0);
      if (start(&threads[0], cpus[i], far_thread, &both)) continue;
      const int failed = start(&threads[1], cpus[0], near_thread, &both);
      if (failed) {
        atomic_store_explicit(&both.turn, -1, memory_order_release);
        sem_post(&both.begins);
      } else {
        pthread_join(threads[1], NULL);
      }
      pthread_join(threads[0], NULL);
      sem_destroy(&both.begins);
      round_trips_ns[i] = both.round_trip_ns;
    }
  }
  return measured;
}
