/* Declarations of bionic's stdlib.h that the runtime in C uses */
#ifndef TVMFLOW_BIONIC_STDLIB_H
#define TVMFLOW_BIONIC_STDLIB_H
#include <stddef.h>
void *malloc(size_t);
void *calloc(size_t, size_t);
void *realloc(void *, size_t);
void free(void *);
int posix_memalign(void **, size_t, size_t);
char *getenv(const char *);
_Noreturn void abort(void);
void qsort(void *, size_t, size_t, int (*)(const void *, const void *));
#endif
