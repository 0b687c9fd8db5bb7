/* A plugin of qemu-user that counts the instructions, multiply-adds, and loaded and stored bytes of an arm64 program, and
 * with the argument caches=KIB:WAYS:KIB:WAYS the lines that a data cache L1 and a cache L2 of these sizes would have missed.
 *
 * The program reads the counts in two ways. CLOCK_REALTIME advances by one nanosecond for each instruction only, so
 * that timers based on it (as TVM's) count instructions. And the system call COUNTERS_CALL, which no kernel has, writes as
 * many counters to memory of the program as it has room for.
 *
 * Built for the machine that emulates, with no header of QEMU's: the few declarations are those of its documented interface, versions
 * 1 to 4. Guest addresses are taken for host addresses (guest_base 0, which the first look at the clock checks).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNTERS_CALL 7201 /* beside all numbers of Linux; also in runtime/rpc/rpc.c */
enum { INSTRUCTIONS, MAC_INSTRUCTIONS, MACS, LOADED_BYTES, STORED_BYTES, TRANSLATED, L1_MISSES = TRANSLATED, L2_MISSES, COUNTERS };
enum { CLOCK_GETTIME = 113 }; /* of arm64 */

#define EXPORTED __attribute__((visibility("default")))
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int flags, void *);
void qemu_plugin_register_vcpu_syscall_cb(
    plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
void qemu_plugin_register_vcpu_syscall_ret_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, int64_t));
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, uint32_t, uint64_t, void *), int flags, int kinds,
                                      void *);
unsigned qemu_plugin_mem_size_shift(uint32_t);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
/* Gone from version 3 on, where a call for each block takes its place. */
__attribute__((weak)) void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
/* Until version 2 it returns a pointer; from 3 on it copies. Both are called with three arguments: the first takes what it needs. */
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);

EXPORTED int qemu_plugin_version = 1;
static uint64_t counters[COUNTERS];
static struct timespec started;
static _Thread_local uint64_t clock_id, clock_at;

typedef struct {
  uint32_t mask, value;
  int macs; /* of a register of 128 bits; 0: as many as it has lanes of the size in bits 22 and 23; -1: lanes of float, bit 22 */
  int whole; /* the same whether the register has 64 or 128 bits */
} kind;

static const kind kinds[] = {
    {0xFF000000, 0x1F000000, 1, 1},  /* fmadd, fmsub, fnmadd, fnmsub */
    {0xBF20FC00, 0x0E20CC00, -1, 0}, /* fmla, fmls */
    {0xBF80B400, 0x0F801000, -1, 0}, /* by element */
    {0xFF80B400, 0x5F801000, 1, 1},  /* of a scalar */
    {0xBF60FC00, 0x0E400C00, 8, 0},  /* of float16 */
    {0xBFC0B400, 0x0F001000, 8, 0},  /* of float16 by element */
    {0xBF60FC00, 0x0E20EC00, 4, 0},  /* fmlal, fmlsl */
    {0xBF60FC00, 0x2E20CC00, 4, 0},  /* fmlal2, fmlsl2 */
    {0xBFC0B400, 0x0F800000, 4, 0},  /* fmlal by element */
    {0xBFC0B400, 0x2F808000, 4, 0},  /* fmlal2 by element */
    {0x9F20FC00, 0x0E209400, 0, 0},  /* mla, mls */
    {0xBF00B400, 0x2F000000, 0, 0},  /* by element */
    {0x9F20DC00, 0x0E208000, 0, 1},  /* smlal, umlal, smlsl, umlsl: lanes of 64 bits */
    {0x9F00B400, 0x0F002000, 0, 1},  /* by element */
    {0x9F20FC00, 0x0E20C000, 0, 1},  /* smull, umull */
    {0x9F00F400, 0x0F00A000, 0, 1},  /* by element */
    {0x9FE0FC00, 0x0E809400, 16, 0}, /* sdot, udot */
    {0x9FC0F400, 0x0F80E000, 16, 0}, /* by element */
    {0xBFE0FC00, 0x0E809C00, 16, 0}, /* usdot */
    {0xBF40F400, 0x0F00F000, 16, 0}, /* usdot, sudot by element */
    {0xDFE0FC00, 0x4E80A400, 32, 1}, /* smmla, ummla */
    {0xFFE0FC00, 0x4E80AC00, 32, 1}, /* usmmla */
    {0xBFE0FC00, 0x2E40FC00, 8, 0},  /* bfdot */
    {0xBFC0F400, 0x0F40F000, 8, 0},  /* by element */
    {0xFFE0FC00, 0x6E40EC00, 16, 1}, /* bfmmla */
    {0xBFE0FC00, 0x2EC0FC00, 4, 1},  /* bfmlalb, bfmlalt */
    {0xBFC0F400, 0x0FC0F000, 4, 1},  /* by element */
};

/* Return the multiply-adds of an instruction. */
static unsigned macs_of(uint32_t code) {
  unsigned is_half = !(code >> 30 & 1), size = code >> 22 & 3;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    if ((code & kinds[i].mask) != kinds[i].value) continue;
    if (kinds[i].macs > 0) return (unsigned)kinds[i].macs >> (kinds[i].whole ? 0 : is_half);
    if (kinds[i].macs < 0) return (size & 1 ? 2u : 4u) >> (is_half && !(size & 1));
    return (kinds[i].whole ? 8u : 16u >> is_half) >> size;
  }
  return 0;
}

/* Return the bytes that an instruction loads or stores; atomic ones count once. */
static unsigned bytes_of(uint32_t code, bool *is_load) {
  static const unsigned char registers[16] = {4, 0, 4, 0, 3, 0, 3, 1, 2, 0, 2, 0, 0, 0, 0, 0};
  unsigned size = code >> 30, is_vector = code >> 26 & 1, kind = code >> 22 & 3, q = code >> 30 & 1;
  if ((code >> 25 & 5) != 4) return 0;
  *is_load = code >> 22 & 1;
  if ((code & 0xBF000000) == 0x0C000000) return registers[code >> 12 & 15] * (q ? 16u : 8u);
  if ((code & 0xBF000000) == 0x0D000000) {
    unsigned step = code >> 14 & 3, lane = code >> 10 & 3, values = ((code >> 13 & 1) << 1 | (code >> 21 & 1)) + 1;
    return values << (step == 3 ? lane : step == 2 ? 2 + (lane & 1) : step);
  }
  if ((code & 0x3B000000) == 0x18000000) { /* of a constant beside the code */
    *is_load = true;
    return size == 3 && !is_vector ? 0 : is_vector ? 4u << size : size == 1 ? 8 : 4;
  }
  if ((code & 0x3A000000) == 0x28000000) return 2 * (is_vector ? 4u << size : size == 2 ? 8u : 4u);
  if ((code & 0x3A000000) == 0x38000000) {
    if (!is_vector && size == 3 && kind == 2) return 0; /* a hint */
    if (is_vector) return kind & 2 ? 16 : 1u << size;
    *is_load = kind != 0;
    return 1u << size;
  }
  return (code & 0x3F000000) == 0x08000000 ? 1u << size : 0;
}

/* Lines of 64 bytes in sets, of which the least recently used goes; loads and stores fetch a line alike. Neither
 * prefetches nor lines written back are simulated, and one core alone: a program with threads has one cache for all. */
enum { LINE_SHIFT = 6, LOADS_AND_STORES = 3 };
typedef struct {
  uint64_t *lines, sets; /* of each set the most recently used first, as a number above 0 */
  unsigned ways;
} cache;
static cache l1, l2;

static bool is_cache(cache *one, unsigned kib, unsigned ways) {
  uint64_t lines = (uint64_t)kib << 10 >> LINE_SHIFT;
  if (!ways || !lines || lines % ways || (lines / ways & (lines / ways - 1))) return false;
  *one = (cache){calloc(lines, sizeof *one->lines), lines / ways, ways};
  return one->lines;
}

/* Return whether a cache lacked a line, which it then has. */
static bool misses(cache *one, uint64_t line) {
  uint64_t *set = one->lines + (line & (one->sets - 1)) * one->ways;
  unsigned at = 0;
  while (at < one->ways && set[at] != line + 1) ++at;
  bool missed = at == one->ways;
  memmove(set + 1, set, (missed ? at - 1 : at) * sizeof *set);
  set[0] = line + 1;
  return missed;
}

static void on_access(unsigned cpu, uint32_t info, uint64_t at, void *nothing) {
  (void)cpu, (void)nothing;
  uint64_t last = (at + (UINT64_C(1) << qemu_plugin_mem_size_shift(info)) - 1) >> LINE_SHIFT;
  for (uint64_t line = at >> LINE_SHIFT; line <= last; ++line) {
    if (!misses(&l1, line)) continue;
    ++counters[L1_MISSES];
    counters[L2_MISSES] += misses(&l2, line);
  }
}

static void add(unsigned cpu, void *counts) {
  (void)cpu;
  for (int i = 0; i < TRANSLATED; ++i) counters[i] += ((uint64_t *)counts)[i];
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *block) {
  (void)id;
  uint64_t counts[TRANSLATED] = {qemu_plugin_tb_n_insns(block)};
  for (size_t i = 0; i < counts[INSTRUCTIONS]; ++i) {
    uint32_t code = 0;
    if (&qemu_plugin_register_vcpu_tb_exec_inline)
      memcpy(&code, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i), NULL, 0), sizeof code);
    else qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i), &code, sizeof code);
    bool is_load = false;
    unsigned macs = macs_of(code), bytes = bytes_of(code, &is_load);
    counts[MAC_INSTRUCTIONS] += macs != 0;
    counts[MACS] += macs;
    counts[is_load ? LOADED_BYTES : STORED_BYTES] += bytes;
    if (l1.ways && bytes)
      qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_access, 0, LOADS_AND_STORES, NULL);
  }
  if (&qemu_plugin_register_vcpu_tb_exec_inline) {
    for (int i = 0; i < TRANSLATED; ++i)
      if (counts[i]) qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &counters[i], counts[i]);
    return;
  }
  uint64_t *kept = malloc(sizeof counts);
  if (!kept) abort();
  memcpy(kept, counts, sizeof counts);
  qemu_plugin_register_vcpu_tb_exec_cb(block, add, 0, kept);
}

static void on_syscall(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                   uint64_t g, uint64_t h) {
  (void)id, (void)cpu, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  if (number == CLOCK_GETTIME) clock_id = a, clock_at = b;
  if (number == COUNTERS_CALL) memcpy((void *)(uintptr_t)a, counters, b < sizeof counters ? b : sizeof counters);
}

static void on_syscall_return(plugin_id id, unsigned cpu, int64_t number, int64_t result) {
  (void)id, (void)cpu;
  if (number != CLOCK_GETTIME || result != 0 || clock_id != CLOCK_REALTIME) return;
  struct timespec *at = (struct timespec *)(uintptr_t)clock_at, now;
  uint64_t passed = (uint64_t)started.tv_nsec + counters[INSTRUCTIONS];
  clock_gettime(CLOCK_REALTIME, &now);
  if (at->tv_sec > now.tv_sec || at->tv_sec < now.tv_sec - 60) {
    fputs("count: the memory of the program lies elsewhere\n", stderr);
    _Exit(99);
  }
  at->tv_sec = started.tv_sec + (time_t)(passed / 1000000000u);
  at->tv_nsec = (long)(passed % 1000000000u);
}

EXPORTED int qemu_plugin_install(plugin_id id, const void *info, int count, char **values) {
  (void)info;
  for (int i = 0; i < count; ++i) {
    unsigned kib[2], ways[2];
    char behind;
    if (sscanf(values[i], "caches=%u:%u:%u:%u%c", &kib[0], &ways[0], &kib[1], &ways[1], &behind) != 4 ||
        !is_cache(&l1, kib[0], ways[0]) || !is_cache(&l2, kib[1], ways[1])) {
      fprintf(stderr, "count: %s is not caches=KIB:WAYS:KIB:WAYS with a power of two of sets\n", values[i]);
      return -1;
    }
  }
  clock_gettime(CLOCK_REALTIME, &started);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, on_syscall_return);
  return 0;
}
