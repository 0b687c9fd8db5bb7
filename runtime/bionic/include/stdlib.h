/* What the runtime in C uses of bionic's stdlib.h. */
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
