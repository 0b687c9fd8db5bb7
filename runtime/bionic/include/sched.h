/* Declarations of bionic's sched.h that the runtime in C uses: sets of 1024 CPUs, as on all its ABIs of 64 bits; of 32 on those of 32 bits. */
#ifndef TVMFLOW_BIONIC_SCHED_H
#define TVMFLOW_BIONIC_SCHED_H
#include <stddef.h>
#ifdef __LP64__
#define CPU_SETSIZE 1024
#else
#define CPU_SETSIZE 32
#endif
#define TVMFLOW_CPU_BITS ((int)(8 * sizeof(unsigned long)))
typedef struct { unsigned long bits[CPU_SETSIZE / 8 / sizeof(unsigned long)]; } cpu_set_t;
int sched_yield(void);
int sched_getcpu(void);
int sched_getaffinity(int, size_t, cpu_set_t *);
int sched_setaffinity(int, size_t, const cpu_set_t *);
int __sched_cpucount(size_t, const cpu_set_t *);
static inline unsigned long tvmflow_cpu_bit(int cpu) { return 1ul << cpu % TVMFLOW_CPU_BITS; }
#define CPU_ZERO(set) __builtin_memset(set, 0, sizeof(cpu_set_t))
#define CPU_SET(cpu, set) ((void)((cpu) < CPU_SETSIZE && ((set)->bits[(cpu) / TVMFLOW_CPU_BITS] |= tvmflow_cpu_bit(cpu))))
#define CPU_CLR(cpu, set) ((void)((cpu) < CPU_SETSIZE && ((set)->bits[(cpu) / TVMFLOW_CPU_BITS] &= ~tvmflow_cpu_bit(cpu))))
#define CPU_ISSET(cpu, set) ((cpu) < CPU_SETSIZE && ((set)->bits[(cpu) / TVMFLOW_CPU_BITS] & tvmflow_cpu_bit(cpu)))
#define CPU_COUNT(set) __sched_cpucount(sizeof(cpu_set_t), set)
#define CPU_AND(to, one, two) \
  do { \
    for (int word = 0; word < CPU_SETSIZE / TVMFLOW_CPU_BITS; ++word) (to)->bits[word] = (one)->bits[word] & (two)->bits[word]; \
  } while (0)
#endif
