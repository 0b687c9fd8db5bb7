/* Hands an instance images of every kind and much that is none, in random order; exits with the line of the first fault. */
#define _GNU_SOURCE
#include "plan.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

extern plan_image image;
extern unsigned char image_values[3 * 256 * 8];
extern tvmflow_tensor outputs[];
const tvmflow_api *tvmflow_network(void);

static const tvmflow_api *api;
static unsigned state = 1;

static uint32_t below(uint32_t end) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)state * end) >> 32);
}

/* Any kind of input that a plan may have. */
static void want_something(void) {
  const uint32_t elements[] = {1, 2, 4, 8};
  image = (plan_image){.width = 1 + below(40), .height = 1 + below(40), .channels = below(2) ? 3 : 1, .resize = below(3) ? 1 + below(60) : 0,
                       .filter = (plan_filter)below(3), .is_bgr = below(2), .element = elements[below(4)], .table = image_values};
  image.column_step = 1, image.row_step = image.width, image.channel_step = (size_t)image.width * image.height;
  image.sample_size = image.channel_step * image.channels * image.element;
  for (size_t i = 0; i < sizeof image_values; ++i) image_values[i] = (unsigned char)i;
}

/* An image in memory that ends where its last row does: what reads on is found. */
static tvmflow_image something(void **memory) {
  const uint32_t bytes[] = {3, 3, 4, 1};
  tvmflow_image made = {.width = 1 + below(70), .height = 1 + below(70), .format = (tvmflow_pixels)below(4)};
  size_t row = made.width * bytes[made.format], stride = row + below(9);
  if (!below(3)) stride = row;
  else made.stride = stride;
  size_t size = stride * (made.height - 1) + row;
  unsigned char *pixels = malloc(size);
  CHECK(pixels);
  for (size_t i = 0; i < size; ++i) pixels[i] = (unsigned char)below(256);
  made.pixels = *memory = pixels;
  return made;
}

/* Spoil one thing of a call that is as it should be; returns what the call has to return. */
static tvmflow_status spoil(tvmflow_image *given) {
  switch (below(8)) {
    case 0: given->pixels = NULL; return TVMFLOW_BAD_ARGUMENT;
    case 1: given->width = below(2) ? 0 : TVMFLOW_MAX_SIDE + 1 + below(UINT32_MAX - TVMFLOW_MAX_SIDE - 1); return TVMFLOW_BAD_ARGUMENT;
    case 2: given->height = below(2) ? 0 : TVMFLOW_MAX_SIDE + 1 + below(UINT32_MAX - TVMFLOW_MAX_SIDE - 1); return TVMFLOW_BAD_ARGUMENT;
    case 3: given->format = (tvmflow_pixels)(4 + below(1000)); return TVMFLOW_BAD_ARGUMENT;
    case 4:
      given->stride = (given->format == TVMFLOW_GRAY ? 1 : 3) * given->width - 1;
      return given->stride ? TVMFLOW_BAD_ARGUMENT : TVMFLOW_OK;
    case 5: given->stride = SIZE_MAX - below(1000); return TVMFLOW_BAD_ARGUMENT;
    default: return TVMFLOW_OK;
  }
}

static void one_call(tvmflow_instance *net, unsigned char *scores, unsigned char *sample) {
  void *memory;
  tvmflow_image given = something(&memory);
  tvmflow_status expected = spoil(&given), status;
  memset(sample, 0xa5, outputs[1].size);
  if (below(2)) {
    int is_whole = below(9) != 0;
    status = api->run_image(net, &given, (void *[]){scores, is_whole ? sample : NULL});
    if (!is_whole) expected = TVMFLOW_BAD_ARGUMENT;
    if (!status && image.element == 1)
      for (size_t i = 0; i < 3 && i < image.sample_size; ++i) CHECK(sample[i] == scores[i]);
    if (status) CHECK(sample[0] == 0xa5);
  } else {
    uint32_t indices[70], k = below(2) ? below(70) : 1 + below(64);
    float probabilities[70];
    outputs[0].dtype = (tvmflow_dtype)below(4);
    status = api->classify(net, &given, k, below(20) ? indices : NULL, below(2) ? probabilities : NULL);
    if (!k || k > 64 || outputs[0].dtype == TVMFLOW_INT8) expected = TVMFLOW_BAD_ARGUMENT;
    for (uint32_t i = 0; i < k && !status; ++i) CHECK(indices[i] < 64);
    if (status && !expected) expected = status == TVMFLOW_BAD_ARGUMENT ? status : expected; /* NULL indices; too few numbers */
  }
  CHECK(status == expected && !*api->last_error() == !status);
  free(memory);
}

static void *caller(void *net) {
  unsigned char *scores = malloc(outputs[0].size), *sample = malloc(outputs[1].size + 1);
  static const unsigned char pixels[64 * 64 * 3] = {1, 2, 3};
  uint32_t best[3];
  CHECK(scores && sample);
  for (uint32_t turn = 0; turn < 20; ++turn) {
    tvmflow_image given = {.pixels = pixels, .width = 8 + turn, .height = 64 - turn, .format = TVMFLOW_RGB};
    CHECK(api->run_image(net, &given, (void *[]){scores, sample + turn % 2}) == TVMFLOW_OK);
    CHECK(api->classify(net, &given, 3, best, NULL) == TVMFLOW_OK && best[2] < 64);
  }
  free(scores), free(sample);
  return NULL;
}

static void callers_side_by_side(void) {
  tvmflow_instance *nets[2];
  pthread_t callers[4];
  want_something();
  image.element = 1; /* any bits of which are no NaN when they are read as bfloat16 below 0x7f80 */
  memset(image_values, 1, sizeof image_values);
  outputs[0].dtype = TVMFLOW_FLOAT32;
  for (int i = 0; i < 2; ++i) CHECK(api->create(NULL, &nets[i]) == TVMFLOW_OK);
  for (int i = 0; i < 4; ++i) CHECK(!pthread_create(&callers[i], NULL, caller, nets[i % 2]));
  for (int i = 0; i < 4; ++i) pthread_join(callers[i], NULL);
  for (int i = 0; i < 2; ++i) api->destroy(nets[i]);
}

static int left, held;

static void *count_down(void *context, size_t size, size_t alignment) {
  if (!left || context != &left) return NULL;
  --left, ++held;
  return aligned_alloc(alignment, size);
}

static void give_back(void *context, void *memory) {
  CHECK(context == &left && memory);
  --held;
  free(memory);
}

static void every_allocation_may_fail(void) {
  static const unsigned char pixels[9] = {1, 2, 3};
  tvmflow_image given = {.pixels = pixels, .width = 1, .height = 3, .format = TVMFLOW_RGB};
  int failed = 0;
  want_something();
  outputs[0].dtype = TVMFLOW_FLOAT32;
  memset(image_values, 1, sizeof image_values);
  for (int allowed = 0;; ++allowed) {
    tvmflow_options options = {.threads = 1, .allocate = count_down, .release = give_back, .context = &left};
    tvmflow_instance *net = NULL;
    uint32_t best;
    left = allowed;
    if (api->create(&options, &net)) continue;
    tvmflow_status status = api->classify(net, &given, 1, &best, NULL);
    CHECK(!status || (status == TVMFLOW_NO_MEMORY && *api->last_error()));
    failed += status != TVMFLOW_OK;
    left = 100;
    CHECK(api->classify(net, &given, 1, &best, NULL) == TVMFLOW_OK && !*api->last_error());
    api->destroy(net);
    CHECK(!held);
    if (!status) break;
  }
  CHECK(failed >= 4);
}

static void what_is_no_image_and_the_profile(void) {
  tvmflow_image given = {.pixels = &given, .width = 1, .height = 1, .format = TVMFLOW_GRAY};
  tvmflow_profile row;
  tvmflow_instance *net = NULL;
  unsigned char *scores = malloc(outputs[0].size), *sample = malloc(outputs[1].size);
  CHECK(scores && sample && api->create(NULL, &net) == TVMFLOW_OK);
  CHECK(api->run_image(NULL, &given, (void *[]){scores, sample}) == TVMFLOW_BAD_ARGUMENT && *api->last_error());
  CHECK(api->run_image(net, NULL, (void *[]){scores, sample}) == TVMFLOW_BAD_ARGUMENT && *api->last_error());
  CHECK(api->run_image(net, &given, NULL) == TVMFLOW_BAD_ARGUMENT && *api->last_error());
  CHECK(api->set_profiling(net, 1) == TVMFLOW_OK);
  for (int i = 0; i < 3; ++i) CHECK(api->run_image(net, &given, (void *[]){scores, sample}) == TVMFLOW_OK);
  CHECK(api->profile(net, api->kernels, &row) == TVMFLOW_OK && row.calls == 3 && !strcmp(row.kernel, "images"));
  CHECK(api->profile(net, api->kernels + 1, &row) == TVMFLOW_BAD_ARGUMENT);
  api->destroy(net);
  free(scores), free(sample);
}

/* 0, small, or any number of 32 bits. */
static uint32_t any(void) { return below(3) ? below(4) : below(2) ? below(UINT32_MAX) : UINT32_MAX; }

static void random_options_and_indices(void) {
  int made = 0, refused = 0;
  for (int turn = 0; turn < 200; ++turn) {
    tvmflow_options options = {.threads = any(), .spin_us = any(), .context = &left};
    if (!below(3)) options.cpu_mask = (uint64_t)any() << 32 | any();
    if (!below(3)) options.allocate = count_down;
    if (options.allocate ? below(4) != 0 : !below(6)) options.release = give_back;
    left = 100;
    tvmflow_instance *net = NULL;
    tvmflow_status status = api->create(below(50) ? &options : NULL, &net);
    CHECK((status == TVMFLOW_OK) == (net != NULL) && !*api->last_error() == !status);
    if (options.threads > TVMFLOW_MAX_THREADS && net) CHECK(!held); /* no options were given */
    tvmflow_tensor info;
    tvmflow_profile row;
    uint32_t i = any();
    CHECK((api->input(i, &info) == TVMFLOW_OK) == (i < 1) && (api->output(i, &info) == TVMFLOW_OK) == (i < 2));
    CHECK(api->profile(net, i, &row) == TVMFLOW_BAD_ARGUMENT && api->set_profiling(net, (int)i) == (net ? TVMFLOW_OK : TVMFLOW_BAD_ARGUMENT));
    if (net && i) CHECK((api->profile(net, i, &row) == TVMFLOW_OK) == (i <= api->kernels));
    net ? ++made : ++refused;
    api->destroy(net);
    CHECK(!held);
  }
  CHECK(made > 20 && refused > 20);
}

int main(void) {
  api = tvmflow_network();
  unsigned char *scores = malloc(outputs[0].size), *sample = malloc(outputs[1].size);
  CHECK(scores && sample);
  for (int turn = 0; turn < 8; ++turn) {
    tvmflow_options options = {.threads = 1 + below(3), .cpu_mask = below(2) ? 0 : 1};
    tvmflow_instance *net = NULL;
    CHECK(api->create(&options, &net) == TVMFLOW_OK);
    for (int call = 0; call < 60; ++call) {
      want_something();
      one_call(net, scores, sample);
    }
    api->destroy(net);
  }
  free(scores), free(sample);
  random_options_and_indices();
  callers_side_by_side();
  every_allocation_may_fail();
  what_is_no_image_and_the_profile();
  return 0;
}
