/* Runs a network.so with inputs, outputs and images at every address modulo a cache line, as near as possible to a page before or behind
 * that cannot be accessed; inputs lie in memory that cannot be written, the library's own between such pages, too. Exits 0 if every run
 * has the bytes of the first, writes nothing beside its outputs, and asks for no memory where the header says that none is copied.
 * `hostile`: inputs are the numbers that no index may be. */
#define _GNU_SOURCE
#include "tvmflow.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_TENSORS 32
#define MAX_AXES 16
#define LINE ((size_t)TVMFLOW_ALIGNMENT)
#define FILLING 0xa5

static char doing[200];
#define FAIL(...) (printf("%s: ", doing), printf(__VA_ARGS__), printf("\n"), exit(1))

/* -- memory between pages that cannot be accessed -- */

typedef struct {
  unsigned char *first; /* of `span` bytes of memory */
  size_t span, size;
  unsigned char *at; /* where `size` bytes lie now */
} guarded;

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static guarded map_guarded(size_t size) {
  const size_t page = page_size(), span = (size + 2 * LINE + page - 1) / page * page;
  unsigned char *base = mmap(NULL, span + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || mprotect(base + page, span, PROT_READ | PROT_WRITE)) FAIL("no memory");
  return (guarded){base + page, span, size, base + page};
}

static void unmap_guarded(const guarded *gone) { munmap(gone->first - page_size(), gone->span + 2 * page_size()); }

/* Choose the place: `offset` bytes from a line of the cache, at the first or the last line that it allows. */
static unsigned char *place(guarded *moved, size_t offset, int at_end) {
  unsigned char *last = moved->first + moved->span - moved->size;
  moved->at = at_end ? last - ((uintptr_t)last - offset) % LINE : moved->first + offset;
  return moved->at;
}

static void fill(guarded *filled, const unsigned char *bytes) {
  mprotect(filled->first, filled->span, PROT_READ | PROT_WRITE);
  memset(filled->first, FILLING, filled->span);
  if (!bytes) return;
  memcpy(filled->at, bytes, filled->size);
  mprotect(filled->first, filled->span, PROT_READ);
}

static int is_clean_beside(const guarded *written) {
  for (unsigned char *at = written->first; at < written->first + written->span; ++at)
    if (*at != FILLING && (at < written->at || at >= written->at + written->size)) return 0;
  return 1;
}

/* -- memory of the library -- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static guarded held[4096];
static int allocations;

static void *allocate(void *context, size_t size, size_t alignment) {
  (void)context, (void)alignment;
  guarded made = map_guarded(size);
  place(&made, 0, 1);
  pthread_mutex_lock(&mutex);
  ++allocations;
  size_t i = 0;
  while (held[i].first) ++i;
  held[i] = made;
  pthread_mutex_unlock(&mutex);
  return made.at;
}

static void release(void *context, void *memory) {
  (void)context;
  pthread_mutex_lock(&mutex);
  size_t i = 0;
  while (held[i].at != memory) ++i;
  unmap_guarded(&held[i]);
  held[i] = (guarded){0};
  pthread_mutex_unlock(&mutex);
}

/* -- runs -- */

typedef struct {
  uint32_t count;
  guarded tensors[MAX_TENSORS];
  size_t widths[MAX_TENSORS];
  unsigned char *bytes[MAX_TENSORS]; /* of inputs, or of the outputs of the first run */
} group;

static const tvmflow_api *api;
static tvmflow_instance *net;
static group inputs, outputs;

static void report_fault(int number, siginfo_t *info, void *context) {
  (void)context;
  const unsigned char *at = info->si_addr;
  printf("%s: signal %d at %p", doing, number, (const void *)at);
  for (int is_output = 0; is_output < 2; ++is_output)
    for (uint32_t i = 0; i < (is_output ? outputs : inputs).count; ++i) {
      const guarded *near = &(is_output ? outputs : inputs).tensors[i];
      if (near->first && at >= near->first - page_size() && at < near->first + near->span + page_size())
        printf(", byte %td of %s %u, which has %zu", at - near->at, is_output ? "output" : "input", i, near->size);
    }
  printf("\n");
  fflush(stdout);
  _exit(1);
}

static size_t width_of(tvmflow_dtype dtype) { return (const size_t[]){4, 2, 2, 1, 1, 4, 8, 1}[dtype]; }

static int hostile;

/* Fill with what lies outside of any tensor, or just outside of small ones; with numbers that have no integer. */
static void draw_hostile(tvmflow_dtype dtype, unsigned char *bytes, size_t size) {
  static const int64_t numbers[] = {INT64_MIN, -1, 7, 0, INT64_MAX, 1, INT32_MIN, 4, -5, INT32_MAX, 2, 1ll << 33, 5, -4, 3, -(1ll << 33)};
  static const uint32_t floats[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7149f2ca, 0xf149f2ca, 0xbf800000, 0x3f800000, 0x40a00000,
                                    0,          0xc0000000, 0x4f000000, 0xcf000000, 0x5f000000, 0x40e00000, 0x3f000000, 0x80000000};
  static uint32_t at;
  const size_t width = width_of(dtype);
  for (size_t i = 0; i < size / width; ++i, at += 5) {
    if (dtype == TVMFLOW_FLOAT32) memcpy(bytes + i * width, &floats[(at + i / 16) % 16], width);
    else memcpy(bytes + i * width, &numbers[(at + i / 16) % 16], width); /* its lower bytes */
  }
}

/* Fill with floats of 0.5 to 2 of either sign, any bytes, or integers 0 and 1, which are legal indices. */
static void draw(tvmflow_dtype dtype, unsigned char *bytes, size_t size) {
  static uint32_t state = 1;
  const size_t width = width_of(dtype);
  for (size_t i = 0; i < size / width; ++i) {
    const uint32_t random = (state = state * 1664525u + 1013904223u) >> 8, sign = random & 1;
    uint64_t element = dtype >= TVMFLOW_INT32 ? random & 1 : random;
    if (dtype == TVMFLOW_FLOAT32) element = 0x3f000000u + random % 0x1000000u + (sign << 31);
    if (dtype == TVMFLOW_FLOAT16) element = 0x3800u + random % 0x800u + (sign << 15);
    if (dtype == TVMFLOW_BFLOAT16) element = 0x3f00u + random % 0x100u + (sign << 15);
    memcpy(bytes + i * width, &element, width);
  }
}

/* Make the tensors of a run; sizes: NULL for those of `run`. */
static void make_group(group *made, int is_output, const int64_t *sizes) {
  made->count = is_output ? api->outputs : api->inputs;
  if (made->count > MAX_TENSORS) FAIL("more than %d tensors", MAX_TENSORS);
  for (uint32_t i = 0; i < made->count; ++i) {
    tvmflow_tensor info;
    int64_t shape[MAX_AXES];
    if ((is_output ? api->output : api->input)(i, &info)) FAIL("no tensor %u", i);
    size_t size = info.size;
    if (sizes) {
      if (api->shape_of(is_output, i, sizes, shape)) FAIL("%s", api->last_error());
      size = width_of(info.dtype);
      for (int32_t axis = 0; axis < info.ndim; ++axis) size *= (size_t)shape[axis];
    }
    made->widths[i] = width_of(info.dtype);
    made->tensors[i] = map_guarded(size);
    made->bytes[i] = malloc(size + 1);
    if (!is_output) (hostile ? draw_hostile : draw)(info.dtype, made->bytes[i], size);
  }
}

static void drop_group(group *dropped) {
  for (uint32_t i = 0; i < dropped->count; ++i) unmap_guarded(&dropped->tensors[i]), free(dropped->bytes[i]);
  *dropped = (group){0};
}

/* Return whether `offset` is a multiple of the elements of all inputs. */
static int is_element(size_t offset) {
  for (uint32_t i = 0; i < inputs.count; ++i)
    if (offset % inputs.widths[i]) return 0;
  return 1;
}

static void check_outputs(int is_first) {
  for (uint32_t i = 0; i < outputs.count; ++i) {
    const guarded *found = &outputs.tensors[i];
    if (!is_clean_beside(found)) FAIL("bytes beside output %u were written", i);
    if (is_first) memcpy(outputs.bytes[i], found->at, found->size);
    else if (memcmp(outputs.bytes[i], found->at, found->size)) FAIL("output %u differs from the first run's", i);
  }
}

/* Run with inputs `offset` bytes from a line, and outputs at their own offset; neighbours are an element further. */
static void run_at(const int64_t *sizes, size_t offset, size_t output_offset, int at_end, int is_first) {
  const void *given[MAX_TENSORS];
  void *wanted[MAX_TENSORS];
  for (uint32_t i = 0; i < inputs.count; ++i) {
    given[i] = place(&inputs.tensors[i], (offset + i * inputs.widths[i]) % LINE, at_end);
    fill(&inputs.tensors[i], inputs.bytes[i]);
  }
  for (uint32_t i = 0; i < outputs.count; ++i) {
    wanted[i] = place(&outputs.tensors[i], output_offset, at_end);
    fill(&outputs.tensors[i], NULL);
  }
  const tvmflow_status status = sizes ? api->run_sized(net, sizes, given, wanted) : api->run(net, given, wanted);
  if (status) FAIL("status %d, %s", (int)status, api->last_error());
  check_outputs(is_first);
}

static void describe(const char *what, const int64_t *sizes, size_t offset, int at_end) {
  int used = snprintf(doing, sizeof doing, "%s %zu bytes from a line, %s", what, offset, at_end ? "at the end" : "at the beginning");
  for (uint32_t i = 0; sizes && i < api->sizes; ++i) used += snprintf(doing + used, sizeof doing - (size_t)used, ", size %d", (int)sizes[i]);
}

/* Run at all places; in_place: inputs at multiples of their elements are not copied, nor are outputs at lines of the cache. */
static void run_everywhere(const int64_t *sizes, int in_place) {
  make_group(&inputs, 0, sizes);
  make_group(&outputs, 1, sizes);
  describe("at the first run", sizes, 0, 0);
  run_at(sizes, 0, 0, 0, 1);
  const int before = allocations;
  for (size_t i = 0; in_place && i < 2 * LINE; ++i) {
    if (!is_element(i / 2)) continue;
    describe("inputs", sizes, i / 2, i % 2);
    run_at(sizes, i / 2, 0, i % 2, 0);
    if (allocations != before) FAIL("a copy");
  }
  for (size_t i = 0; i < 2 * LINE; ++i) {
    describe("inputs and outputs", sizes, i / 2, i % 2);
    run_at(sizes, i / 2, i / 2 * 3 % LINE, i % 2, 0);
  }
  drop_group(&inputs);
  drop_group(&outputs);
}

/* Run in every bucket, at its sizes and at one less. */
static void run_buckets(void) {
  tvmflow_size found[TVMFLOW_MAX_SIZES];
  uint32_t count = 1;
  for (uint32_t i = 0; i < api->sizes; ++i) {
    if (api->size_of(i, &found[i])) FAIL("no size");
    count *= found[i].count;
  }
  for (uint32_t at = 0; at < 2 * count; ++at) {
    int64_t sizes[TVMFLOW_MAX_SIZES];
    uint32_t rest = at / 2;
    for (uint32_t i = 0; i < api->sizes; rest /= found[i++].count) {
      sizes[i] = found[i].buckets[rest % found[i].count];
      sizes[i] -= at % 2 && sizes[i] > 1;
    }
    run_everywhere(sizes, at % 2 == 0);
  }
}

/* Run on images of several formats, contiguous and with rows apart; all api->images are the same one. */
static void run_images(void) {
  static const uint32_t channels[] = {3, 3, 4, 1};
  tvmflow_image *images = calloc(api->images, sizeof *images);
  make_group(&outputs, 1, NULL);
  for (uint32_t format = 0; format < 4; ++format)
    for (size_t i = 0; i < 4 * LINE; ++i) {
      const uint32_t width = 7, height = 5;
      const size_t row = width * channels[format], stride = row + i / 2 % 2;
      unsigned char pixels[8 * 5 * 4];
      describe("pixels", NULL, i / 4, i % 2);
      for (size_t at = 0; at < sizeof pixels; ++at) pixels[at] = (unsigned char)(at % stride * 31 + at / stride * 7);
      inputs = (group){.count = 1, .tensors = {map_guarded(stride * (height - 1) + row)}};
      place(&inputs.tensors[0], i / 4, i % 2);
      fill(&inputs.tensors[0], pixels);
      void *wanted[MAX_TENSORS];
      for (uint32_t o = 0; o < outputs.count; ++o) {
        wanted[o] = place(&outputs.tensors[o], i / 4, i % 2);
        fill(&outputs.tensors[o], NULL);
      }
      for (uint32_t at = 0; at < api->images; ++at)
        images[at] = (tvmflow_image){inputs.tensors[0].at, width, height, i / 2 % 2 ? stride : 0, (tvmflow_pixels)format};
      if (api->run_image(net, images, wanted)) FAIL("%s", api->last_error());
      check_outputs(i == 0);
      unmap_guarded(&inputs.tensors[0]);
    }
  drop_group(&outputs);
  free(images);
}

int main(int count, char **words) {
  void *library = count >= 2 ? dlopen(words[1], RTLD_NOW) : NULL;
  tvmflow_entry entry;
  if (!library) return printf("%s\n", count >= 2 ? dlerror() : "usage: addresses NETWORK.SO [hostile]"), 1;
  hostile = count == 3;
  *(void **)&entry = dlsym(library, "tvmflow_network");
  struct sigaction action = {.sa_sigaction = report_fault, .sa_flags = SA_SIGINFO};
  for (int i = 0; i < 3; ++i) sigaction((int[]){SIGSEGV, SIGBUS, SIGILL}[i], &action, NULL);
  api = entry();
  const tvmflow_options options = {.threads = 2, .allocate = allocate, .release = release};
  snprintf(doing, sizeof doing, "create");
  if (api->create(&options, &net)) FAIL("%s", api->last_error());
  if (api->sizes) run_buckets();
  else run_everywhere(NULL, 1);
  if (api->images) run_images();
  api->destroy(net);
  for (size_t i = 0; i < sizeof held / sizeof *held; ++i)
    if (held[i].first) FAIL("%zu bytes were not released", held[i].size);
  return 0;
}
