/* Declarations of bionic's string.h that the runtime in C uses */
#ifndef TVMFLOW_BIONIC_STRING_H
#define TVMFLOW_BIONIC_STRING_H
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
char *strstr(const char *, const char *);
int strcmp(const char *, const char *);
size_t strlen(const char *);
char *strrchr(const char *, int);
char *strcpy(char *, const char *);
size_t strcspn(const char *, const char *);
void *memchr(const void *, int, size_t);
char *strchr(const char *, int);
char *strerror(int);
int strncmp(const char *, const char *, size_t);
size_t strspn(const char *, const char *);
#endif
