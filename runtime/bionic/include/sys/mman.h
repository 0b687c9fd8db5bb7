/* Declarations of bionic's sys/mman.h that the runtime in C uses: the kernel's numbers. */
#ifndef TVMFLOW_BIONIC_MMAN_H
#define TVMFLOW_BIONIC_MMAN_H
#include <stddef.h>
#define MADV_HUGEPAGE 14
#include <sys/types.h>
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20
#define MAP_FAILED ((void *)-1)
#ifdef __LP64__
void *mmap(void *, size_t, int, int, int, off_t);
#else
void *mmap(void *, size_t, int, int, int, off_t) __asm__("mmap64");
#endif
int munmap(void *, size_t);
int madvise(void *, size_t, int);
#endif
