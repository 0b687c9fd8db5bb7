/* An accelerator in software whose memory is not coherent: what is not flushed it does not see, what is not invalidated nobody sees. */
#include "plan.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 64
#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

static const tvmflow_api *api = &plan_api;

/* What the accelerator itself holds: `address` points to it, `data` to what the CPU sees. */
typedef struct {
  pthread_mutex_t mutex;
  int allocations, left, launches, fail_at;
} board;

static int board_allocate(void *context, tvmflow_memory *memory) {
  board *mine = context;
  pthread_mutex_lock(&mine->mutex);
  int refused = mine->allocations == mine->left;
  mine->allocations += !refused;
  pthread_mutex_unlock(&mine->mutex);
  if (refused) return 1;
  memory->data = aligned_alloc(4096, (memory->size + 4095) / 4096 * 4096);
  memory->handle = malloc(memory->size);
  CHECK(memory->data && memory->handle);
  memset(memory->handle, 0x55, memory->size);
  memory->address = (uint64_t)(uintptr_t)memory->handle;
  return 0;
}

static void board_release(void *context, tvmflow_memory *memory) {
  board *mine = context;
  free(memory->data), free(memory->handle);
  pthread_mutex_lock(&mine->mutex);
  --mine->allocations;
  pthread_mutex_unlock(&mine->mutex);
}

static void board_flush(void *context, const tvmflow_memory *memory, size_t offset, size_t size) {
  (void)context;
  CHECK(offset + size <= memory->size);
  memcpy((char *)memory->handle + offset, (char *)memory->data + offset, size);
}

static void board_invalidate(void *context, const tvmflow_memory *memory, size_t offset, size_t size) {
  (void)context;
  CHECK(offset + size <= memory->size);
  memcpy((char *)memory->data + offset, (char *)memory->handle + offset, size);
}

static int board_launch(void *context, const tvmflow_memory *code, size_t offset, uint32_t count, const tvmflow_memory *memory) {
  board *mine = context;
  const char *instructions = (char *)code->handle + offset;
  signed char *dram = memory->handle;
  pthread_mutex_lock(&mine->mutex);
  int failed = ++mine->launches == mine->fail_at;
  pthread_mutex_unlock(&mine->mutex);
  if (failed) return 1;
  if (*instructions == 'a' && count == 1)
    for (int i = 0; i < SIZE; ++i) dram[64 + i] = (signed char)(dram[i] + (i < 8 ? dram[4096 + i] : dram[4096 + 8 + i]));
  else if (*instructions == 'd' && count == 2 && instructions[16] == 'f')
    for (int i = 0; i < SIZE; ++i) dram[128 + i] = (signed char)(2 * dram[64 + i]);
  else return 1;
  return 0;
}

static board one = {PTHREAD_MUTEX_INITIALIZER, 0, -1, 0, 0};

static tvmflow_driver driver_of(board *mine) {
  return (tvmflow_driver){sizeof(tvmflow_driver), mine, board_allocate, board_release, board_flush, board_invalidate, board_launch};
}

static tvmflow_status run(tvmflow_instance *net, int seed) {
  signed char x[SIZE], y[SIZE], z[SIZE];
  for (int i = 0; i < SIZE; ++i) x[i] = (signed char)((i * 5 + seed) % 40);
  tvmflow_status status = api->run(net, (const void *[]){x}, (void *[]){y, z});
  for (int i = 0; i < SIZE && !status; ++i) {
    int sum = x[i] + (i < 8 ? i + 1 : 0); /* memory behind the image is zero */
    CHECK(y[i] == 2 * sum && z[i] == -sum);
  }
  return status;
}

static void *caller(void *net) {
  for (int seed = 0; seed < 200; ++seed) CHECK(run(net, seed) == TVMFLOW_OK);
  return NULL;
}

static void instances_of_one_board(void) {
  tvmflow_driver driver = driver_of(&one);
  tvmflow_instance *nets[2];
  pthread_t callers[4];
  for (int i = 0; i < 2; ++i) CHECK(api->create_on(NULL, &driver, &nets[i]) == TVMFLOW_OK);
  memset(&driver, 0, sizeof driver); /* it was copied */
  for (int i = 0; i < 4; ++i) CHECK(!pthread_create(&callers[i], NULL, caller, nets[i % 2]));
  for (int i = 0; i < 4; ++i) pthread_join(callers[i], NULL);
  for (int i = 0; i < 2; ++i) api->destroy(nets[i]);
  CHECK(!one.allocations);
}

static void what_goes_wrong(void) {
  tvmflow_instance *net = NULL;
  tvmflow_driver driver = driver_of(&one);
  CHECK(!strcmp(api->device, "by_hand"));
  CHECK(api->create(NULL, &net) == TVMFLOW_BAD_ARGUMENT && strstr(api->last_error(), "create_on") && !net);
  driver.size -= 1;
  CHECK(api->create_on(NULL, &driver, &net) == TVMFLOW_BAD_ARGUMENT && strstr(api->last_error(), "older header"));
  driver = driver_of(&one), driver.launch = NULL;
  CHECK(api->create_on(NULL, &driver, &net) == TVMFLOW_BAD_ARGUMENT && strstr(api->last_error(), "launch"));
  driver = driver_of(&one);
  for (one.left = 0; one.left < 2; ++one.left) {
    CHECK(api->create_on(NULL, &driver, &net) == TVMFLOW_DEVICE_FAILED && *api->last_error() && !net && !one.allocations);
  }
  one.left = -1;
  CHECK(api->create_on(NULL, &driver, &net) == TVMFLOW_OK && run(net, 1) == TVMFLOW_OK);
  for (int later = 1; later <= 2; ++later) {
    one.fail_at = one.launches + later;
    CHECK(run(net, 2) == TVMFLOW_DEVICE_FAILED && !strcmp(api->last_error(), "the accelerator failed in part 0"));
    CHECK(run(net, 3) == TVMFLOW_OK);
  }
  api->destroy(net);
  CHECK(!one.allocations);
}

/* A child of fork shares the accelerator's memory with its parent: it neither runs there nor gives that memory back. */
static void a_child_of_fork(void) {
  tvmflow_instance *net = NULL;
  tvmflow_driver driver = driver_of(&one);
  int outcome = 0;
  CHECK(api->create_on(NULL, &driver, &net) == TVMFLOW_OK && run(net, 1) == TVMFLOW_OK);
  const int held = one.allocations;
  const pid_t child = fork();
  if (!child) {
    alarm(20);
    CHECK(run(net, 2) == TVMFLOW_DEVICE_FAILED && strstr(api->last_error(), "child of fork"));
    api->destroy(net);
    CHECK(one.allocations == held);
    _exit(0);
  }
  CHECK(waitpid(child, &outcome, 0) == child && outcome == 0);
  CHECK(run(net, 3) == TVMFLOW_OK);
  api->destroy(net);
  CHECK(!one.allocations);
}

static int allowed;

static void *scarce(void *context, size_t size, size_t alignment) {
  (void)context;
  return allowed-- > 0 ? aligned_alloc(alignment, size) : NULL;
}

static void give_back(void *context, void *memory) {
  (void)context;
  free(memory);
}

static void every_allocation_may_fail(void) {
  tvmflow_driver driver = driver_of(&one);
  tvmflow_options options = {.allocate = scarce, .release = give_back};
  int failures = 0;
  for (int count = 0; count < 40; ++count) {
    tvmflow_instance *net = NULL;
    allowed = count;
    tvmflow_status status = api->create_on(&options, &driver, &net);
    CHECK(status == TVMFLOW_OK || (status == TVMFLOW_NO_MEMORY && !net && !one.allocations));
    failures += status != TVMFLOW_OK;
    allowed = 100;
    if (!status) CHECK(run(net, count) == TVMFLOW_OK);
    api->destroy(net);
  }
  CHECK(failures >= 5 && failures < 20 && !one.allocations);
}

int main(void) {
  instances_of_one_board();
  what_goes_wrong();
  a_child_of_fork();
  every_allocation_may_fail();
  return 0;
}
