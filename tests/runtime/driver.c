/* Uses an instance in every way that the header allows and in those that it refuses; exits with the line of the first fault. */
#define _GNU_SOURCE
#include "plan.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 1000
#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

static const tvmflow_api *api = &plan_api;

static void fill(float *x, int seed) {
  for (int i = 0; i < SIZE; ++i) x[i] = (float)((i * 7 + seed) % 100);
}

static void check(const float *x, const float *y, const float *z) {
  for (int i = 0; i < SIZE; ++i) {
    float constant = i < 3 ? (float)(i + 1) : 0.0f;
    CHECK(z[i] == x[i] + constant && y[i] == 2 * (x[i] + constant));
  }
}

static float *at(size_t offset) {
  unsigned char *memory = aligned_alloc(64, 8192);
  CHECK(memory);
  return (float *)(void *)(memory + offset);
}

static void drop(float *memory, size_t offset) { free((unsigned char *)(void *)memory - offset); }

static void run_with(tvmflow_instance *net, int seed, size_t offset) {
  float *x = at(offset), *y = at(offset), *z = at(offset), kept[SIZE];
  fill(x, seed);
  memcpy(kept, x, sizeof kept);
  CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_OK);
  check(x, y, z);
  CHECK(!memcmp(kept, x, sizeof kept) && !*api->last_error());
  drop(x, offset), drop(y, offset), drop(z, offset);
}

static void *caller(void *net) {
  for (int seed = 0; seed < 50; ++seed) run_with(net, seed, seed % 2 ? 0 : 4);
  return NULL;
}

static void threads_and_alignment(void) {
  for (uint32_t threads = 0; threads <= 9; ++threads)
    for (int spin = 0; spin < 3; ++spin) {
      tvmflow_options options = {.threads = threads, .spin_us = spin == 1 ? UINT32_MAX : spin == 2 ? 200000 : 0};
      tvmflow_instance *net = NULL;
      CHECK(api->create(&options, &net) == TVMFLOW_OK);
      for (int seed = 0; seed < 4; ++seed) run_with(net, seed, seed % 2 ? 4 : 0);
      if (threads == 3) usleep(2000); /* long enough to fall asleep */
      run_with(net, 9, 0);
      api->destroy(net);
    }
}

static void callers_of_one_instance_and_of_two(void) {
  tvmflow_instance *nets[2];
  pthread_t callers[4];
  for (int i = 0; i < 2; ++i) CHECK(api->create(NULL, &nets[i]) == TVMFLOW_OK);
  for (int i = 0; i < 4; ++i) CHECK(!pthread_create(&callers[i], NULL, caller, nets[i % 2]));
  for (int i = 0; i < 4; ++i) pthread_join(callers[i], NULL);
  for (int i = 0; i < 2; ++i) api->destroy(nets[i]);
}

static atomic_int asked;

/* Profile, whether profiling is on or off or turned on at this moment. */
static void *profiler(void *net) {
  tvmflow_profile row;
  tvmflow_processor found;
  for (int i = 0; i < 200; ++i) {
    CHECK(api->set_profiling(net, i % 3 == 0) == TVMFLOW_OK);
    CHECK(api->profile(net, (uint32_t)i % 2, &row) == TVMFLOW_OK && row.calls <= 50);
    CHECK(api->processor(net, &found) == TVMFLOW_OK && !strcmp(found.kind, "cpu"));
  }
  return NULL;
}

static void *asker(void *net) {
  tvmflow_profile row;
  atomic_store(&asked, 1);
  for (int i = 0; i < 200; ++i) {
    const tvmflow_status status = api->profile(net, 0, &row);
    CHECK(status == TVMFLOW_OK || status == TVMFLOW_BAD_ARGUMENT); /* before profiling is first on */
  }
  return NULL;
}

static void profiles_while_others_run(void) {
  tvmflow_instance *net = NULL;
  pthread_t callers[3];
  CHECK(api->create(NULL, &net) == TVMFLOW_OK);
  CHECK(!pthread_create(&callers[0], NULL, asker, net));
  while (!atomic_load(&asked)) sched_yield();
  CHECK(!pthread_create(&callers[1], NULL, caller, net) && !pthread_create(&callers[2], NULL, profiler, net));
  for (int i = 0; i < 3; ++i) pthread_join(callers[i], NULL);
  api->destroy(net);
}

extern atomic_int cpu_of_task[];

/* Threads of the library leave the caller's CPU to it, wherever that is. */
static void the_caller_has_a_cpu_of_its_own(void) {
  cpu_set_t own;
  tvmflow_instance *net = NULL;
  CHECK(!sched_getaffinity(0, sizeof own, &own));
  CHECK(api->create(&(tvmflow_options){.threads = 2}, &net) == TVMFLOW_OK);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&own) > 1; ++cpu) {
    if (!CPU_ISSET(cpu, &own)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    run_with(net, cpu, 0);
    CHECK(cpu_of_task[0] == cpu && cpu_of_task[1] != cpu);
  }
  CHECK(!sched_setaffinity(0, sizeof own, &own));
  api->destroy(net);
}

extern atomic_int add_tasks, add_ns;

static int cpus(void) {
  cpu_set_t own;
  CHECK(!sched_getaffinity(0, sizeof own, &own));
  return CPU_COUNT(&own);
}

/* Kernels that take less than a hand-over run on one thread, and no thread of the library is woken; others on as many as there are CPUs for. */
static void threads_where_they_are_worth_it(void) {
  const uint32_t all = cpus() < 4 ? (uint32_t)cpus() : 4;
  tvmflow_instance *net = NULL;
  CHECK(!api->threads_of(NULL));
  CHECK(api->create(&(tvmflow_options){.threads = 4, .spin_us = UINT32_MAX}, &net) == TVMFLOW_OK); /* hand-overs wake who sleeps */
  CHECK(api->threads_of(net) == all);
  for (int seed = 0; seed < 100 || (seed < 5000 && api->threads_of(net) != 1); ++seed) run_with(net, seed, 0); /* a busy machine */
  run_with(net, 0, 0);
  CHECK(api->threads_of(net) == 1 && add_tasks == 1);
  api->destroy(net);
  add_ns = 4000000;
  CHECK(api->create(&(tvmflow_options){.threads = 4}, &net) == TVMFLOW_OK);
  for (int seed = 0; seed < 25; ++seed) run_with(net, seed, 0);
  CHECK(api->threads_of(net) == all && add_tasks == (int)all);
  add_ns = 0;
  api->destroy(net);
}

/* An instance that is asked for more threads than there are CPUs has as many as these; of a mask they are the mask's, and the caller's. */
static void no_more_threads_than_cpus(void) {
  cpu_set_t own, one;
  tvmflow_instance *net = NULL;
  CHECK(api->create(&(tvmflow_options){.threads = TVMFLOW_MAX_THREADS}, &net) == TVMFLOW_OK);
  CHECK(api->threads_of(net) == (uint32_t)cpus());
  api->destroy(net);
  CHECK(!sched_getaffinity(0, sizeof own, &own));
  int first = 0, last = 0;
  while (!CPU_ISSET(first, &own)) ++first;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &own)) last = cpu;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  CHECK(!sched_setaffinity(0, sizeof one, &one));
  CHECK(api->create(&(tvmflow_options){.threads = 2}, &net) == TVMFLOW_OK && api->threads_of(net) == 1);
  run_with(net, 1, 0);
  api->destroy(net);
  CHECK(api->create(&(tvmflow_options){.threads = 8, .cpu_mask = (uint64_t)1 << last}, &net) == TVMFLOW_OK);
  CHECK(api->threads_of(net) == 1 + (first != last));
  run_with(net, 2, 0);
  api->destroy(net);
  CHECK(!sched_setaffinity(0, sizeof own, &own));
}

static int left, held;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void *count_down(void *context, size_t size, size_t alignment) {
  CHECK(context == &left && alignment == 64 && size % 64 == 0);
  pthread_mutex_lock(&counting);
  int refused = !left;
  if (!refused) --left, ++held;
  pthread_mutex_unlock(&counting);
  return refused ? NULL : aligned_alloc(alignment, size);
}

static void give_back(void *context, void *memory) {
  CHECK(context == &left && memory);
  pthread_mutex_lock(&counting);
  --held;
  pthread_mutex_unlock(&counting);
  free(memory);
}

static void every_allocation_may_fail(void) {
  float *x = at(4), *y = at(4), *z = at(0);
  int refused = 0, failed = 0;
  for (int allowed = 0;; ++allowed) {
    tvmflow_options options = {.threads = 2, .allocate = count_down, .release = give_back, .context = &left};
    tvmflow_instance *net = (tvmflow_instance *)&left;
    left = allowed;
    tvmflow_status status = api->create(&options, &net);
    if (status) {
      CHECK(status == TVMFLOW_NO_MEMORY && net == (tvmflow_instance *)&left && !held);
      ++refused;
      continue;
    }
    fill(x, 1);
    status = api->run(net, (const void *[]){x}, (void *[]){y, z});
    if (status) {
      CHECK((status == TVMFLOW_NO_MEMORY || status == TVMFLOW_KERNEL_FAILED) && *api->last_error());
      left = 1000;
      CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_OK);
      ++failed;
    }
    check(x, y, z);
    api->destroy(net);
    CHECK(!held);
    if (left && !status) break;
  }
  CHECK(refused >= 5 && failed >= 2);
  drop(x, 4), drop(y, 4), drop(z, 0);
}

static void faults_are_told(void) {
  tvmflow_instance *net = NULL;
  float x[SIZE], y[SIZE], z[SIZE];
  tvmflow_tensor info;
  tvmflow_profile row;
  CHECK(api->create(NULL, NULL) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->create(&(tvmflow_options){.threads = TVMFLOW_MAX_THREADS + 1}, &net) == TVMFLOW_BAD_ARGUMENT && !net);
  CHECK(api->create(&(tvmflow_options){.allocate = count_down}, &net) == TVMFLOW_BAD_ARGUMENT && !net);
  CHECK(api->create(&(tvmflow_options){.threads = 2, .cpu_mask = (uint64_t)1 << 63}, &net) == TVMFLOW_NO_THREADS && !net);
  CHECK(api->create(&(tvmflow_options){.threads = 2, .cpu_mask = 1}, &net) == TVMFLOW_OK);
  CHECK(!*api->last_error());
  CHECK(api->run(NULL, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT && *api->last_error());
  CHECK(api->run(net, NULL, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->run(net, (const void *[]){NULL}, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->run(net, (const void *[]){x}, (void *[]){y, NULL}) == TVMFLOW_BAD_ARGUMENT);
  CHECK(!strcmp(api->last_error(), "output z is NULL"));
  CHECK(api->input(1, &info) == TVMFLOW_BAD_ARGUMENT && api->output(2, &info) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->input(0, NULL) == TVMFLOW_BAD_ARGUMENT && api->input(0, &info) == TVMFLOW_OK && info.size == sizeof x);
  CHECK(!strcmp(info.name, "x") && info.ndim == 2 && info.shape[1] == SIZE && info.dtype == TVMFLOW_FLOAT32);
  fill(x, 0);
  x[0] = -9;
  CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_KERNEL_FAILED);
  CHECK(!strcmp(api->last_error(), "ValueError: a[0] is negative"));
  x[0] = 0, x[1] = -9;
  CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_KERNEL_FAILED);
  CHECK(!strcmp(api->last_error(), "kernel twice failed"));
  x[1] = 0;
  CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_OK && !*api->last_error());
  CHECK(api->profile(net, 0, &row) == TVMFLOW_BAD_ARGUMENT && api->set_profiling(NULL, 1) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->set_profiling(net, 1) == TVMFLOW_OK);
  for (int i = 0; i < 3; ++i) CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_OK);
  CHECK(api->set_profiling(net, 0) == TVMFLOW_OK);
  CHECK(api->run(net, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_OK);
  CHECK(api->profile(net, 1, &row) == TVMFLOW_OK && row.calls == 3 && row.nanoseconds && !strcmp(row.kernel, "twice"));
  CHECK(api->profile(net, 2, &row) == TVMFLOW_BAD_ARGUMENT);
  tvmflow_image image = {.pixels = x, .width = 1, .height = 1, .format = TVMFLOW_GRAY};
  uint32_t best;
  CHECK(!api->images && api->run_image(net, &image, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT);
  CHECK(!strcmp(api->last_error(), "the network takes no images"));
  const int64_t sizes[TVMFLOW_MAX_SIZES] = {1, 1};
  CHECK(!api->sizes && api->run_sized(net, sizes, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT);
  CHECK(!strcmp(api->last_error(), "the network has one shape: run"));
  CHECK(api->classify(net, &image, 1, &best, NULL) == TVMFLOW_BAD_ARGUMENT && *api->last_error());
  api->destroy(net);
  api->destroy(NULL);
}

static void the_largest_scores(void) {
  unsigned state = 1;
  for (int turn = 0; turn < 2000; ++turn) {
    float scores[20];
    uint32_t found[20], count = 1 + state % 20, k = 1 + state / 32 % count, numbers = 0;
    for (uint32_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      scores[i] = state >> 28 == 0 ? NAN : state >> 28 == 1 ? -INFINITY : (float)(state >> 24 & 7);
      numbers += scores[i] == scores[i];
    }
    tvmflow_status status = api->top_k(scores, count, k, found);
    CHECK((status == TVMFLOW_OK) == (k <= numbers));
    for (uint32_t rank = 0; rank < k && !status; ++rank) {
      uint32_t before = 0, me = found[rank];
      for (uint32_t i = 0; i < count; ++i) before += scores[i] > scores[me] || (scores[i] == scores[me] && i < me);
      CHECK(me < count && before == rank);
    }
  }
  float one = 1;
  uint32_t index;
  CHECK(api->top_k(NULL, 1, 1, &index) == TVMFLOW_BAD_ARGUMENT && api->top_k(&one, 1, 0, &index) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->top_k(&one, 1, 2, &index) == TVMFLOW_BAD_ARGUMENT && api->top_k(&one, 1, 1, NULL) == TVMFLOW_BAD_ARGUMENT);
}

static tvmflow_instance *idle, *asleep, *running;

/* Do something in a child of this process; a child that hangs is ended by the alarm. */
static void in_child(void (*work)(void)) {
  int outcome = 0;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    alarm(20);
    work();
    _exit(0);
  }
  CHECK(waitpid(child, &outcome, 0) == child && outcome == 0);
}

static void *run_long(void *net) {
  run_with(net, 7, 0);
  return NULL;
}

static void the_running_one_is_refused(void) {
  float *x = at(0), *y = at(0), *z = at(0);
  CHECK(api->run(running, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_NO_THREADS);
  CHECK(strstr(api->last_error(), "forked while this instance ran"));
  CHECK(api->set_profiling(running, 1) == TVMFLOW_OK && api->threads_of(running));
  drop(x, 0), drop(y, 0), drop(z, 0);
}

static void run_the_idle_one(void) { run_with(idle, 2, 0); }

static void destroy_the_idle_one(void) { api->destroy(idle); }

static void use_all(void) {
  tvmflow_instance *another = NULL;
  for (int seed = 0; seed < 30; ++seed) run_with(idle, seed, 4), run_with(asleep, seed, 0);
  the_running_one_is_refused();
  in_child(run_the_idle_one);
  in_child(the_running_one_is_refused);
  api->destroy(idle), api->destroy(running), api->destroy(asleep);
  CHECK(api->create(&(tvmflow_options){.threads = 2}, &another) == TVMFLOW_OK);
  run_with(another, 3, 0);
  api->destroy(another);
}

/* An instance that nobody runs starts threads of its own in a child, and in a child of that; one that runs cannot be used there. */
static void children_of_fork(void) {
  tvmflow_instance *gone = NULL;
  pthread_t thread;
#ifdef __SANITIZE_THREAD__
  return; /* it ends a child that starts a thread */
#endif
  CHECK(api->create(&(tvmflow_options){.threads = 2}, &idle) == TVMFLOW_OK);
  CHECK(api->create(&(tvmflow_options){.threads = 2, .spin_us = UINT32_MAX}, &asleep) == TVMFLOW_OK);
  CHECK(api->create(NULL, &gone) == TVMFLOW_OK);
  CHECK(api->create(&(tvmflow_options){.threads = 2}, &running) == TVMFLOW_OK);
  api->destroy(gone);
  run_with(idle, 1, 0), run_with(asleep, 1, 0);
  add_ns = 400000000;
  add_tasks = 0;
  CHECK(!pthread_create(&thread, NULL, run_long, running));
  while (!add_tasks) usleep(1000);
  add_ns = 0;
  in_child(use_all);
  in_child(destroy_the_idle_one); /* before it ran there */
  pthread_join(thread, NULL);
  in_child(run_the_idle_one);
  run_with(idle, 4, 0), run_with(running, 4, 0);
  api->destroy(idle), api->destroy(running), api->destroy(asleep);
}

int main(void) {
  children_of_fork();
  threads_and_alignment();
  the_caller_has_a_cpu_of_its_own();
  threads_where_they_are_worth_it();
  no_more_threads_than_cpus();
  callers_of_one_instance_and_of_two();
  profiles_while_others_run();
  every_allocation_may_fail();
  faults_are_told();
  the_largest_scores();
  return 0;
}
