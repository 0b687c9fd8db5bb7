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
_Noreturn void exit(int);
_Noreturn void _Exit(int);
long strtol(const char *, char **, int);
long long strtoll(const char *, char **, int);
char *realpath(const char *, char *);
#endif
