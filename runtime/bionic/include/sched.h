/* What the runtime in C uses of bionic's sched.h: sets of 1024 CPUs, as on all its ABIs of 64 bits. */
#ifndef TVMFLOW_BIONIC_SCHED_H
#define TVMFLOW_BIONIC_SCHED_H
#include <stddef.h>
typedef struct { unsigned long bits[16]; } cpu_set_t;
int sched_yield(void);
int sched_getcpu(void);
int sched_getaffinity(int, size_t, cpu_set_t *);
int __sched_cpucount(size_t, const cpu_set_t *);
static inline int tvmflow_cpu_word(int cpu) { return cpu >> 6; }
#define CPU_ZERO(set) __builtin_memset(set, 0, sizeof(cpu_set_t))
#define CPU_SET(cpu, set) ((void)((set)->bits[tvmflow_cpu_word(cpu)] |= 1ul << ((cpu) & 63)))
#define CPU_CLR(cpu, set) ((void)((set)->bits[tvmflow_cpu_word(cpu)] &= ~(1ul << ((cpu) & 63))))
#define CPU_ISSET(cpu, set) ((int)((set)->bits[tvmflow_cpu_word(cpu)] >> ((cpu) & 63) & 1))
#define CPU_COUNT(set) __sched_cpucount(sizeof(cpu_set_t), set)
#define CPU_AND(to, one, two) \
  do { \
    for (int word = 0; word < 16; ++word) (to)->bits[word] = (one)->bits[word] & (two)->bits[word]; \
  } while (0)
#endif
