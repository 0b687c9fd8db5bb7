/* Open a library of tvmflow.h, run it and measure its time, in a separate process. */
#define _GNU_SOURCE
#include "worker.h"

#include "process_state.h"
#include "random_pad.h"
#include "tvmflow.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_TENSORS 64
#define MAX_TIMES 10000

static struct {
  int socket;
  const store *files;
  const tvmflow_api *api;
  tvmflow_instance *instance;
  void *tensors[MAX_TENSORS]; /* inputs, then outputs */
  void *first[MAX_TENSORS];   /* initial content of an output before each run; NULL: unchanged */
  uint64_t resident;          /* bytes, before the library was opened */
} own;

void say(text *reply, const char *status, const char *words) {
  text_add(reply, "{\"status\":");
  text_add_string(reply, status);
  if (words) {
    text_add(reply, ",\"text\":");
    text_add_string(reply, words);
  }
}

static void refuse(text *reply, const char *status, const char *words) { say(reply, status, words ? words : "unknown"); }

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t resident_bytes(void) {
  unsigned long all = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (file && fscanf(file, "%lu %lu", &all, &resident) != 2) resident = 0;
  if (file) fclose(file);
  return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Return the peak resident bytes of this process. */
static uint64_t peak_bytes(void) {
  char line[256];
  unsigned long found = 0;
  FILE *file = fopen("/proc/self/status", "re");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "VmHWM: %lu kB", &found) == 1) break;
  if (file) fclose(file);
  return (uint64_t)found * 1024;
}

/* -- opening -- */

static const char *machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "arm64";
    case EM_ARM: return "arm";
    case EM_386: return "x86";
    case EM_RISCV: return "riscv";
    default: return "another processor";
  }
}

/* Return the machine and class of an ELF file, 0 for other files. */
static unsigned elf_machine(const char *path, unsigned char *size) {
  unsigned char head[20];
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t count = file >= 0 ? read(file, head, sizeof head) : -1;
  if (file >= 0) close(file);
  if (count != sizeof head || memcmp(head, ELFMAG, SELFMAG)) return 0;
  *size = head[EI_CLASS];
  return head[18] | (unsigned)head[19] << 8;
}

/* Return whether a file is for this processor; write a reply if not. */
static int is_for_here(const char *path, text *reply) {
  char words[160];
  unsigned char size = 0, our_size = 0;
  unsigned machine = elf_machine(path, &size), ours = elf_machine("/proc/self/exe", &our_size);
  if (!machine) return refuse(reply, "refused", "the file is no library"), 0;
  if (!ours || (machine == ours && size == our_size)) return 1;
  snprintf(words, sizeof words, "the library is for %s, and this device is %s with %d bits", machine_name(machine), machine_name(ours),
           our_size == ELFCLASS64 ? 64 : 32);
  return refuse(reply, "wrong_abi", words), 0;
}

static int set_mask(uint64_t mask) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (int i = 0; i < 64; ++i)
    if (mask >> i & 1) CPU_SET(i, &wanted);
  return mask ? sched_setaffinity(0, sizeof wanted, &wanted) : 0;
}

static void describe(text *reply, int is_input, uint32_t count) {
  text_add(reply, ",\"%s\":[", is_input ? "inputs" : "outputs");
  for (uint32_t i = 0; i < count; ++i) {
    tvmflow_tensor info = {0};
    (is_input ? own.api->input : own.api->output)(i, &info);
    text_add(reply, "%s{\"name\":", i ? "," : "");
    text_add_string(reply, info.name);
    text_add(reply, ",\"dtype\":%d,\"size\":%zu,\"shape\":[", (int)info.dtype, info.size);
    for (int32_t axis = 0; axis < info.ndim; ++axis) text_add(reply, "%s%lld", axis ? "," : "", (long long)info.shape[axis]);
    text_add(reply, "]}");
  }
  text_add(reply, "]");
}

static int is_on_gpu(const tvmflow_api *api) { return api->size >= offsetof(tvmflow_api, processor) + sizeof api->processor && api->gpu; }

/* Describe the GPU that runs the network, and the time to open it; nothing on CPUs. */
static void describe_gpu(text *reply, uint64_t opened_ns) {
  tvmflow_processor is;
  if (!is_on_gpu(own.api) || own.api->processor(own.instance, &is)) return;
  text_add(reply, ",\"gpu\":{\"api\":");
  text_add_string(reply, own.api->gpu);
  text_add(reply, ",\"device\":");
  text_add_string(reply, is.device);
  text_add(reply, ",\"driver\":");
  text_add_string(reply, is.driver);
  text_add(reply, ",\"version\":");
  text_add_string(reply, is.version);
  text_add(reply, "},\"opened_ns\":%llu", (unsigned long long)opened_ns);
}

static tvmflow_tensor tensor_info(uint32_t i) {
  tvmflow_tensor info = {0};
  if (i < own.api->inputs) own.api->input(i, &info);
  else own.api->output(i - own.api->inputs, &info);
  return info;
}

static const char *make_tensors(void) {
  if (own.api->inputs + own.api->outputs > MAX_TENSORS) return "it has more inputs and outputs than 64";
  for (uint32_t i = 0; i < own.api->inputs + own.api->outputs; ++i) {
    size_t size = tensor_info(i).size;
    if (posix_memalign(&own.tensors[i], TVMFLOW_ALIGNMENT, size ? size : 1)) return "no memory for inputs and outputs";
    memset(own.tensors[i], 0, size);
  }
  return NULL;
}

/* Create the instance; GPU programs are cached in the agent's folder, unless they must be recompiled. */
static tvmflow_status make_instance(const tvmflow_api *api, const tvmflow_options *options, int keeps) {
  char folder[64];
  snprintf(folder, sizeof folder, "/proc/self/fd/%d", own.files->folder);
  const tvmflow_gpu gpu = {.size = sizeof gpu, .cache = keeps ? folder : NULL};
  return is_on_gpu(api) ? api->create_on_gpu(options, &gpu, &own.instance) : api->create(options, &own.instance);
}

static void open_library(const request *asked, text *reply) {
  char path[STORE_PATH];
  uint64_t threads, mask, keeps;
  if (own.api) return refuse(reply, "bad_request", "the library is open");
  if (request_number(asked, "threads", 0, TVMFLOW_MAX_THREADS, 0, &threads) || request_number(asked, "mask", 0, UINT64_MAX, 0, &mask) ||
      request_number(asked, "keep", 0, 1, 1, &keeps))
    return refuse(reply, "bad_request", "threads, mask or keep");
  if (!store_path(own.files, request_value(asked, "sha256"), path)) return refuse(reply, "no_such_file", "the library was not uploaded");
  if (!is_for_here(path, reply)) return;
  if (set_mask(mask)) return refuse(reply, "refused", "the system refuses the CPU mask");
  own.resident = resident_bytes();
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return refuse(reply, "refused", dlerror());
  tvmflow_entry entry;
  *(void **)&entry = dlsym(library, "tvmflow_network");
  if (!entry) return refuse(reply, "refused", "it exports no tvmflow_network");
  const tvmflow_api *api = entry();
  if (api->abi_version != TVMFLOW_ABI_VERSION) return refuse(reply, "refused", "it has another version of the ABI");
  const tvmflow_options options = {.threads = (uint32_t)threads, .cpu_mask = mask};
  random_pad(); /* never freed before the process ends */
  const uint64_t begin = now_ns();
  if (make_instance(api, &options, (int)keeps) != TVMFLOW_OK) return refuse(reply, "refused", api->last_error());
  const uint64_t opened_ns = now_ns() - begin;
  own.api = api;
  const char *fault = make_tensors();
  if (fault) return refuse(reply, "refused", fault);
  say(reply, "ok", NULL);
  describe(reply, 1, api->inputs);
  describe(reply, 0, api->outputs);
  describe_gpu(reply, opened_ns);
}

/* -- inputs and outputs -- */

static int read_file(const char *path, void *bytes, size_t size) {
  struct stat found;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  int status = file < 0 || fstat(file, &found) || (uint64_t)found.st_size != size ? -1 : 0;
  for (size_t done = 0; !status && done < size;) {
    ssize_t count = read(file, (char *)bytes + done, size - done);
    if (count <= 0) status = -1;
    else done += (size_t)count;
  }
  if (file >= 0) close(file);
  return status;
}

/* Fill a tensor from an uploaded file, or from the frames of data that follow. */
static void fill(void *bytes, size_t size, const request *asked, text *reply) {
  char path[STORE_PATH];
  uint64_t said;
  const char *digest = request_value(asked, "sha256");
  if (digest) {
    if (!store_path(own.files, digest, path)) return refuse(reply, "no_such_file", "the input was not uploaded");
    return read_file(path, bytes, size) ? refuse(reply, "refused", "the file has another size than the tensor") : say(reply, "ok", NULL);
  }
  int wrong = request_number(asked, "size", 0, MAX_FILE, MAX_FILE + 1, &said) || said != size;
  for (uint64_t done = 0; said <= MAX_FILE && done < said;) { /* always read: the next request follows */
    frame_head head;
    static unsigned char scrap[MAX_DATA];
    if (frame_read_head(own.socket, &head, STALLED_MS) || head.kind != FRAME_DATA || !head.size || head.size > said - done) _exit(2);
    if (wire_read(own.socket, wrong ? scrap : (unsigned char *)bytes + done, head.size, STALLED_MS)) _exit(2);
    done += head.size;
  }
  if (!wrong) return say(reply, "ok", NULL);
  char words[96];
  snprintf(words, sizeof words, "the tensor has %zu bytes, and not %llu", size, (unsigned long long)said);
  refuse(reply, "refused", words);
}

/* Return the tensor of a request; -1, with a reply, if there is none. */
static int tensor_of(const request *asked, int is_input, text *reply) {
  uint64_t index, count = own.api ? (is_input ? own.api->inputs : own.api->outputs) : 0;
  if (!request_number(asked, "index", 0, MAX_TENSORS, MAX_TENSORS, &index) && index < count)
    return (int)index + (is_input ? 0 : (int)own.api->inputs);
  return refuse(reply, "bad_request", own.api ? "no such input or output" : "no library is open"), -1;
}

static void set_input(const request *asked, text *reply) {
  int at = tensor_of(asked, 1, reply);
  if (at < 0) {
    if (request_value(asked, "size")) _exit(2); /* discard what follows */
    return;
  }
  fill(own.tensors[at], tensor_info((uint32_t)at).size, asked, reply);
}

static void set_output(const request *asked, text *reply) {
  int at = tensor_of(asked, 0, reply);
  if (at < 0) return;
  if (!request_value(asked, "sha256")) return refuse(reply, "bad_request", "sha256");
  size_t size = tensor_info((uint32_t)at).size;
  if (!own.first[at] && !(own.first[at] = malloc(size ? size : 1))) return refuse(reply, "refused", "no memory");
  fill(own.first[at], size, asked, reply);
}

static void fetch(const request *asked, text *reply) {
  int at = tensor_of(asked, 0, reply);
  if (at < 0) return;
  size_t size = tensor_info((uint32_t)at).size;
  for (size_t done = 0; done < size;) {
    size_t part = size - done < MAX_DATA ? size - done : MAX_DATA;
    if (frame_write(own.socket, FRAME_DATA, 0, (char *)own.tensors[at] + done, part)) _exit(2);
    done += part;
  }
  say(reply, "ok", NULL);
  text_add(reply, ",\"size\":%zu", size);
}

/* -- running -- */

static int run_once(text *reply) {
  const void *const *inputs = (const void *const *)own.tensors;
  if (own.api->run(own.instance, inputs, own.tensors + own.api->inputs) == TVMFLOW_OK) return 0;
  refuse(reply, "refused", own.api->last_error());
  return -1;
}

static void run(text *reply) {
  if (!own.api) return refuse(reply, "bad_request", "no library is open");
  for (uint32_t i = own.api->inputs; i < own.api->inputs + own.api->outputs; ++i)
    if (own.first[i]) memcpy(own.tensors[i], own.first[i], tensor_info(i).size);
  uint64_t begin = now_ns();
  if (run_once(reply)) return;
  uint64_t end = now_ns();
  say(reply, "ok", NULL);
  text_add(reply, ",\"ns\":%llu", (unsigned long long)(end - begin));
}

/* Return the nanoseconds of the kernels of `number` runs by the device's clock; negative, with a reply, on failure. */
static double kernel_time(uint64_t number, text *reply) {
  double total = 0;
  if (own.api->set_profiling(own.instance, 1) != TVMFLOW_OK) return refuse(reply, "refused", "no memory for the profile"), -1;
  for (uint64_t i = 0; i < number; ++i)
    if (run_once(reply)) return -1;
  for (uint32_t i = 0; i < own.api->kernels; ++i) {
    tvmflow_profile found = {"", 0, 0};
    own.api->profile(own.instance, i, &found);
    total += (double)found.nanoseconds;
  }
  own.api->set_profiling(own.instance, 0);
  return total;
}

/* Return the nanoseconds of `number` runs, of their kernels only or as the caller waits; negative, with a reply, on failure. waited: by the caller. */
static double time_of(uint64_t number, int of_kernels, double *waited, text *reply) {
  uint64_t begin = now_ns();
  double took = of_kernels ? kernel_time(number, reply) : 0;
  for (uint64_t i = 0; !of_kernels && i < number; ++i)
    if (run_once(reply)) return -1;
  *waited = (double)(now_ns() - begin);
  return of_kernels ? took : *waited;
}

/* Reply, after warmup runs, `repeats` means of `number` runs, of more if the caller waits less than min_us for all: submitting a kernel of 1 us may take 100. */
static void time_runs(const request *asked, text *reply) {
  uint64_t warmup, repeats, number, min_us, of_kernels;
  if (!own.api) return refuse(reply, "bad_request", "no library is open");
  if (request_number(asked, "warmup", 0, 1000, 1, &warmup) || request_number(asked, "repeats", 1, MAX_TIMES, 1, &repeats) ||
      request_number(asked, "number", 1, 1000000, 1, &number) || request_number(asked, "min_us", 0, 10000000, 0, &min_us) ||
      request_number(asked, "kernels", 0, 1, 0, &of_kernels))
    return refuse(reply, "bad_request", "warmup, repeats, number, min_us or kernels");
  for (uint64_t i = 0; i < warmup; ++i)
    if (run_once(reply)) return;
  double *times = malloc(repeats * sizeof *times);
  for (uint64_t i = 0; times && i < repeats;) {
    double waited = 0, took = time_of(number, (int)of_kernels, &waited, reply);
    if (took < 0) return free(times);
    if (waited < (double)(min_us * 1000) && number < 1000000) { /* again, with slightly more than the estimated number */
      double factor = waited > 0 ? 1.2 * (double)(min_us * 1000) / waited : 1000.0;
      uint64_t more = (uint64_t)((double)number * (factor < 1000.0 ? factor : 1000.0));
      number = more > 1000000 ? 1000000 : more > number ? more : number + 1;
      continue;
    }
    times[i++] = took / (double)number;
  }
  if (!times) return refuse(reply, "refused", "no memory");
  say(reply, "ok", NULL);
  text_add(reply, ",\"number\":%llu,\"ns\":[", (unsigned long long)number);
  for (uint64_t i = 0; i < repeats; ++i) text_add(reply, "%s%.1f", i ? "," : "", times[i]);
  text_add(reply, "]");
  free(times);
}

static void reply_profile(const request *asked, text *reply) {
  uint64_t runs;
  if (!own.api) return refuse(reply, "bad_request", "no library is open");
  if (request_number(asked, "runs", 1, 1000, 1, &runs)) return refuse(reply, "bad_request", "runs");
  if (own.api->set_profiling(own.instance, 1) != TVMFLOW_OK) return refuse(reply, "refused", "no memory for the profile");
  for (uint64_t i = 0; i < runs; ++i)
    if (run_once(reply)) return;
  say(reply, "ok", NULL);
  text_add(reply, ",\"kernels\":[");
  for (uint32_t i = 0; i < own.api->kernels; ++i) {
    tvmflow_profile found = {"", 0, 0};
    own.api->profile(own.instance, i, &found);
    text_add(reply, "%s[", i ? "," : "");
    text_add_string(reply, found.kernel);
    text_add(reply, ",%llu,%llu]", (unsigned long long)found.calls, (unsigned long long)found.nanoseconds);
  }
  text_add(reply, "],\"copies\":[");
  for (uint32_t i = 1; i <= 2 && is_on_gpu(own.api); ++i) { /* inputs, outputs */
    tvmflow_profile found = {"", 0, 0};
    if (!own.api->profile(own.instance, own.api->kernels + i, &found)) text_add(reply, "%s%llu", i > 1 ? "," : "", (unsigned long long)found.nanoseconds);
  }
  text_add(reply, "]");
  own.api->set_profiling(own.instance, 0);
}

static void reply_memory(text *reply) {
  uint64_t now = resident_bytes();
  say(reply, "ok", NULL);
  text_add(reply, ",\"grown\":%llu,\"resident\":%llu,\"peak\":%llu", (unsigned long long)(now > own.resident ? now - own.resident : 0),
           (unsigned long long)now, (unsigned long long)peak_bytes());
}

static void reply_state(const request *asked, text *reply) {
  uint64_t look, threads;
  process_state is;
  if (request_number(asked, "look", 0, 1, 0, &look) || request_number(asked, "threads", 1, TVMFLOW_MAX_THREADS, 1, &threads))
    return refuse(reply, "bad_request", "look or threads");
  read_process_state((unsigned)threads, (int)look, &is);
  say(reply, "ok", NULL);
  text_add(reply, ",\"wall_s\":%.9f,\"own_s\":%.6f,\"waited_s\":%.9f,\"switches\":%.0f", is.wall_s, is.own_s, is.waited_s, is.switches);
  text_add(reply, ",\"busy_s\":%.3f,\"processors\":%.0f,\"khz\":%.0f,\"loop_ns\":%.1f,\"round_trip_ns\":%.1f", is.busy_s, is.processors, is.khz,
           is.loop_ns, is.round_trip_ns);
}

static void handle_request(const request *asked, text *reply) {
  const char *name = asked->name;
  if (!strcmp(name, "open")) open_library(asked, reply);
  else if (!strcmp(name, "input")) set_input(asked, reply);
  else if (!strcmp(name, "output")) set_output(asked, reply);
  else if (!strcmp(name, "run")) run(reply);
  else if (!strcmp(name, "time")) time_runs(asked, reply);
  else if (!strcmp(name, "fetch")) fetch(asked, reply);
  else if (!strcmp(name, "profile")) reply_profile(asked, reply);
  else if (!strcmp(name, "memory")) reply_memory(reply);
  else if (!strcmp(name, "state")) reply_state(asked, reply);
  else refuse(reply, "bad_request", "no such request");
}

_Noreturn void worker_serve(int socket, const store *files) {
  own.socket = socket;
  own.files = files;
  for (;;) {
    frame_head head;
    unsigned char bytes[MAX_REQUEST];
    request asked;
    text reply = {0};
    if (frame_read_head(socket, &head, -1) || head.kind != FRAME_REQUEST || wire_read(socket, bytes, head.size, STALLED_MS)) _exit(0);
    if (request_parse(&asked, bytes, head.size)) refuse(&reply, "bad_request", "no request");
    else handle_request(&asked, &reply);
    text_add(&reply, "}");
    if (reply.cut) {
      text_free(&reply);
      refuse(&reply, "refused", "the reply is too long");
      text_add(&reply, "}");
    }
    if (frame_write(socket, FRAME_REPLY, 0, reply.at, reply.used)) _exit(0);
    text_free(&reply);
  }
}
