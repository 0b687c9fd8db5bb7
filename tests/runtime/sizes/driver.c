/* Runs of all sizes, in any order, on memory that is aligned and on memory that is not; and what is refused. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                       \
  do {                                                                                    \
    if (!(what)) {                                                                        \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, tvmflow_last_error()); \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

static const tvmflow_api *const api = &plan_api;

static void run_all(tvmflow_instance *net, int64_t batch, int64_t length, int off) {
  const int64_t shape[] = {batch, length, 2}, *const shapes[] = {shape}, half = (length + 1) / 2;
  int64_t sizes[TVMFLOW_MAX_SIZES], found[3];
  CHECK(!api->sizes_of(shapes, sizes) && sizes[0] == batch && sizes[1] == length);
  CHECK(!api->shape_of(0, 0, sizes, found) && !memcmp(found, shape, sizeof shape));
  CHECK(!api->shape_of(1, 1, sizes, found) && found[0] == batch && found[1] == half);
  /* Exactly as large as they have to be: a sanitizer sees each byte beyond. */
  size_t x_size = (size_t)(batch * length) * 8, y_size = x_size / 2, z_size = (size_t)(batch * half) * 4;
  void *memory[] = {aligned_alloc(64, 4096), malloc(x_size), malloc(y_size), malloc(z_size)};
  int32_t *x = off ? memory[1] : memory[0], *y = memory[2], *z = memory[3];
  for (int64_t i = 0; i < batch * length * 2; ++i) x[i] = (int32_t)(rand() % 1000);
  CHECK(!api->run_sized(net, sizes, (const void *[]){x}, (void *[]){y, z}));
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t i = 0; i < length; ++i) {
      const int32_t wanted = x[2 * (n * length + i)] + x[2 * (n * length + i) + 1] + 100;
      CHECK(y[n * length + i] == wanted && (i % 2 || z[n * half + i / 2] == wanted));
    }
  for (int i = 0; i < 4; ++i) free(memory[i]);
}

static void what_fits_no_bucket_is_refused(tvmflow_instance *net) {
  int32_t x[4096] = {0}, y[4096], z[4096];
  const int64_t empty[] = {0, 3}, large[] = {1, 8}, negative[] = {1, -1}, *const sizes[] = {empty, large, negative};
  const int64_t wrong[] = {1, 3, 3}, *const shapes[] = {wrong};
  int64_t found[TVMFLOW_MAX_SIZES] = {-5, -5};
  for (int i = 0; i < 3; ++i) CHECK(api->run_sized(net, sizes[i], (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->shape_of(1, 0, large, found) == TVMFLOW_BAD_ARGUMENT);
  CHECK(!strcmp(api->last_error(), "length is 8, and this network takes 1 to 7: give it less at a time, or build it with a larger bucket"));
  CHECK(api->sizes_of(shapes, found) == TVMFLOW_BAD_ARGUMENT && found[0] == -5);
  CHECK(!strcmp(api->last_error(), "size 2 of input x is 3, and not 2"));
  CHECK(api->run_sized(net, NULL, (const void *[]){x}, (void *[]){y, z}) == TVMFLOW_BAD_ARGUMENT && api->sizes_of(NULL, found) == TVMFLOW_BAD_ARGUMENT);
  CHECK(api->shape_of(0, 1, wrong, found) == TVMFLOW_BAD_ARGUMENT && api->shape_of(1, 2, wrong, found) == TVMFLOW_BAD_ARGUMENT);
}

/* Behind smaller runs as before them. */
static void runs_without_sizes_are_the_largest(tvmflow_instance *net) {
  int32_t x[4 * 7 * 2], y[4 * 7], z[4 * 4];
  for (int i = 0; i < 4 * 7 * 2; ++i) x[i] = i;
  CHECK(!api->run(net, (const void *[]){x}, (void *[]){y, z}));
  for (int i = 0; i < 4 * 7; ++i) CHECK(y[i] == 4 * i + 101);
}

int main(void) {
  tvmflow_instance *net = NULL;
  tvmflow_size size;
  CHECK(!api->create(NULL, &net));
  CHECK(api->sizes == 2 && !api->size_of(1, &size) && !strcmp(size.name, "length") && size.count == 2 && size.buckets[1] == 7);
  CHECK(api->size_of(2, &size) == TVMFLOW_BAD_ARGUMENT && api->size_of(0, NULL) == TVMFLOW_BAD_ARGUMENT);
  for (int turn = 0; turn < 300; ++turn) {
    run_all(net, 1 + rand() % 4, 1 + rand() % 7, rand() % 2);
    if (turn % 10 == 0) runs_without_sizes_are_the_largest(net);
  }
  what_fits_no_bucket_is_refused(net);
  api->destroy(net);
  return 0;
}
