/* Uses a network.so while one call of the C library fails, each in turn: every outcome is an error code, nothing is left behind, and the next
 * instance, or the next run of this one, computes what the first did. Exits with what was wrong. A second word is a driver of OpenCL. */
#define _GNU_SOURCE
#include "shim.h"
#include "tvmflow.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TENSORS 8
#define PIXELS 300
#define FAIL(...) (printf("call %ld fails: ", failing), printf(__VA_ARGS__), printf("\n"), exit(1))

static long failing;
static const tvmflow_api *api;
static const char *driver;
static unsigned char *inputs[MAX_TENSORS], *outputs[MAX_TENSORS], *expected[MAX_TENSORS];
static size_t sizes[MAX_TENSORS];

static long entries_of(const char *path) {
  long found = 0;
  DIR *folder = opendir(path);
  while (readdir(folder)) ++found;
  closedir(folder);
  return found;
}

/* A thread that has been joined may be listed for a moment. */
static void expect_entries(const char *path, long wanted) {
  for (int turn = 0; turn < 2000 && entries_of(path) != wanted; ++turn) usleep(1000);
  if (entries_of(path) != wanted) FAIL("%ld instead of %ld in %s", entries_of(path), wanted, path);
}

static void check_status(const char *what, tvmflow_status status) {
  if (!status) return;
  if (status == TVMFLOW_BAD_ARGUMENT) FAIL("%s blames its caller: %s", what, api->last_error());
  if (!*api->last_error()) FAIL("%s returned %d and no reason", what, (int)status);
}

static tvmflow_status make(tvmflow_instance **net) {
  const tvmflow_options options = {.threads = 2};
  const tvmflow_gpu gpu = {.size = sizeof gpu, .library = driver};
  *net = NULL;
  return driver ? api->create_on_gpu(&options, &gpu, net) : api->create(&options, net);
}

static tvmflow_status run(tvmflow_instance *net) {
  for (uint32_t i = 0; i < api->outputs; ++i) memset(outputs[i], 0xa5, sizes[i]);
  return api->run(net, (const void *const *)inputs, (void *const *)outputs);
}

static void check_outputs(void) {
  for (uint32_t i = 0; i < api->outputs; ++i)
    if (memcmp(outputs[i], expected[i], sizes[i])) FAIL("another output %u", i);
}

/* Use an instance in every way that may ask for memory. Return the first error. */
static tvmflow_status use(tvmflow_instance *net) {
  static unsigned char pixels[PIXELS * 3];
  const tvmflow_image image = {.pixels = pixels, .width = PIXELS / 10, .height = 10, .format = TVMFLOW_RGB};
  tvmflow_image *images = NULL;
  tvmflow_profile row;
  tvmflow_status status = run(net);
  check_status("run", status);
  if (status) return status;
  check_outputs();
  status = api->set_profiling(net, 1); /* sets no last_error */
  if (status) return status == TVMFLOW_NO_MEMORY ? status : (FAIL("set_profiling returned %d", (int)status), status);
  check_status("a profiled run", status = run(net));
  if (status) return status;
  check_outputs();
  if (api->profile(net, 0, &row) || row.calls != (api->kernels > 0)) FAIL("no profile");
  if (!api->images) return TVMFLOW_OK;
  images = (tvmflow_image[]){image, image, image, image};
  status = api->run_image(net, images, (void *const *)outputs);
  check_status("run_image", status);
  return status;
}

/* Give back what glibc keeps of a failed dlsym. */
static void drop_dlerror(void) {
  dlerror();
  dlerror();
}

/* Return whether a call failed. uses: whether to run the instance. */
static int one_turn(int uses) {
  drop_dlerror();
  const long blocks = held_blocks(), files = entries_of("/proc/self/fd");
  tvmflow_instance *net = NULL;
  arm(failing);
  tvmflow_status status = make(&net);
  check_status("create", status);
  if (!status != (net != NULL)) FAIL("create returned %d and %s instance", (int)status, net ? "an" : "no");
  if (!status && uses) status = use(net);
  const int has_failed = disarm() >= failing;
  if (net && uses && !driver) {
    if (use(net)) FAIL("the next run returned %d: %s", (int)status, api->last_error());
    api->set_profiling(net, 0);
  }
  api->destroy(net);
  expect_entries("/proc/self/task", 3); /* this thread, and names of folders */
  expect_entries("/proc/self/fd", files);
  drop_dlerror();
  if (held_blocks() != blocks) FAIL("%ld blocks of memory are left, status %d: %s", held_blocks() - blocks, (int)status, api->last_error());
  return has_failed;
}

static void make_tensors(void) {
  tvmflow_tensor info;
  for (uint32_t i = 0; i < api->inputs; ++i) {
    api->input(i, &info);
    inputs[i] = (unsigned char *)calloc(1, info.size + 1) + 1; /* has to be copied */
    for (size_t at = 0; at < info.size; ++at) inputs[i][at] = (unsigned char)(at * 7 % 61);
  }
  for (uint32_t i = 0; i < api->outputs; ++i) {
    api->output(i, &info);
    sizes[i] = info.size;
    outputs[i] = (unsigned char *)calloc(1, info.size + 1) + 1;
    expected[i] = calloc(1, info.size + 1);
  }
}

static void *read_error(void *none) { return (void)none, (void *)(uintptr_t)api->last_error(); }

/* glibc makes a thread's variables of the library now, and keeps what a thread that ended had for the next one. */
static void make_variables_of_threads(void) {
  pthread_t thread;
  api->last_error();
  if (pthread_create(&thread, NULL, read_error, NULL) || pthread_join(thread, NULL)) FAIL("no thread");
}

int main(int count, char **words) {
  void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
  tvmflow_entry entry;
  tvmflow_instance *net = NULL;
  if (!library) return printf("%s\n", count > 1 ? dlerror() : "usage: faults NETWORK.SO [DRIVER]"), 1;
  *(void **)&entry = dlsym(library, "tvmflow_network");
  api = entry();
  driver = count > 2 ? words[2] : NULL;
  make_tensors();
  setvbuf(stdout, NULL, _IONBF, 0);
  make_variables_of_threads();
  for (int i = 0; i < 2 && driver; ++i, api->destroy(net)) /* a driver stays loaded */
    if (make(&net)) FAIL("without a fault: %s", api->last_error());
  for (failing = 1; one_turn(0); ++failing) continue; /* the first instance registers handlers of fork */
  if (make(&net) || run(net)) FAIL("without a fault: %s", api->last_error());
  for (uint32_t i = 0; i < api->outputs; ++i) memcpy(expected[i], outputs[i], sizes[i]);
  api->destroy(net);
  for (failing = 1; one_turn(1); ++failing) continue;
  printf("%ld calls\n", failing - 1);
  return 0;
}
