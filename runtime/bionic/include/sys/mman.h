/* Declarations of bionic's sys/mman.h that the runtime in C uses: the kernel's numbers. */
#ifndef TVMFLOW_BIONIC_MMAN_H
#define TVMFLOW_BIONIC_MMAN_H
#include <stddef.h>
#define MADV_HUGEPAGE 14
int madvise(void *, size_t, int);
#endif
