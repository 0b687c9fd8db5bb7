#include "processor.h"

#include "plan.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>

enum { LEAF_1_ECX, LEAF_7_EBX, LEAF_7_ECX, LEAF_7_EDX, LEAF_71_EAX, WORDS };
/* Registers that the system has to save (XCR0). */
#define AVX 0x6u
#define AVX512 0xe6u
#define AMX 0x60000u

static const struct {
  const char *name;
  unsigned char word, bit;
  unsigned saved;
} known[] = {
    {"ssse3", LEAF_1_ECX, 9, 0},          {"fma", LEAF_1_ECX, 12, AVX},          {"sse4_1", LEAF_1_ECX, 19, 0},
    {"sse4_2", LEAF_1_ECX, 20, 0},        {"popcnt", LEAF_1_ECX, 23, 0},         {"avx", LEAF_1_ECX, 28, AVX},
    {"f16c", LEAF_1_ECX, 29, AVX},        {"bmi1", LEAF_7_EBX, 3, 0},            {"avx2", LEAF_7_EBX, 5, AVX},
    {"bmi2", LEAF_7_EBX, 8, 0},           {"avx512f", LEAF_7_EBX, 16, AVX512},   {"avx512dq", LEAF_7_EBX, 17, AVX512},
    {"avx512ifma", LEAF_7_EBX, 21, AVX512}, {"avx512cd", LEAF_7_EBX, 28, AVX512}, {"avx512bw", LEAF_7_EBX, 30, AVX512},
    {"avx512vl", LEAF_7_EBX, 31, AVX512}, {"avx512vbmi", LEAF_7_ECX, 1, AVX512}, {"avx512_vbmi2", LEAF_7_ECX, 6, AVX512},
    {"avx512_vnni", LEAF_7_ECX, 11, AVX512}, {"avx512_bitalg", LEAF_7_ECX, 12, AVX512},
    {"avx512_vpopcntdq", LEAF_7_ECX, 14, AVX512}, {"amx_bf16", LEAF_7_EDX, 22, AMX}, {"avx512_fp16", LEAF_7_EDX, 23, AVX512},
    {"amx_tile", LEAF_7_EDX, 24, AMX},    {"amx_int8", LEAF_7_EDX, 25, AMX},     {"avx_vnni", LEAF_71_EAX, 4, AVX},
    {"avx512_bf16", LEAF_71_EAX, 5, AVX512},
};

static atomic_uint words[WORDS], saved;
static atomic_int is_read;

/* In a virtual machine each cpuid leaves it and takes tens of microseconds. Threads that read at once find the same. */
static void read_words(void) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) words[LEAF_71_EAX] = a;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    words[LEAF_7_EBX] = b;
    words[LEAF_7_ECX] = c;
    words[LEAF_7_EDX] = d;
  }
  if (__get_cpuid(1, &a, &b, &c, &d)) words[LEAF_1_ECX] = c;
  a = 0;
  if (words[LEAF_1_ECX] >> 27 & 1) __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0)); /* the system uses XSAVE */
  saved = a;
  is_read = 1;
}

static int has(const char *name) {
  if (!is_read) read_words();
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (!strcmp(known[i].name, name)) return (words[known[i].word] >> known[i].bit & 1) && (saved & known[i].saved) == known[i].saved;
  return 1; /* a flag that this runtime does not know is not judged */
}

#elif defined(__linux__) && (defined(__aarch64__) || defined(__arm__))
#include <sys/auxv.h>

/* Bits of AT_HWCAP (26 for AT_HWCAP2), which the kernel never changes. */
static const struct {
  const char *name;
  unsigned char entry, bit;
} known[] = {
#ifdef __aarch64__
    {"atomics", 16, 8}, {"asimdhp", 16, 10}, {"asimdrdm", 16, 12}, {"asimddp", 16, 20}, {"sve", 16, 22},
    {"sve2", 26, 1},    {"i8mm", 26, 13},    {"bf16", 26, 14},
#else
    {"neon", 16, 12}, {"vfpv4", 16, 16},
#endif
};

static int has(const char *name) {
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (!strcmp(known[i].name, name)) return (int)(getauxval(known[i].entry) >> known[i].bit & 1);
  return 1;
}

#else /* the module or the target's system says what there is */

static int has(const char *name) { return name != NULL; }

#endif

const char *processor_lacks(void) {
  for (const char *const *name = plan.flags; name && *name; ++name)
    if (!has(*name)) return *name;
  return NULL;
}
