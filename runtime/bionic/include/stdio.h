/* Declarations of bionic's stdio.h that the runtime in C uses */
#ifndef TVMFLOW_BIONIC_STDIO_H
#define TVMFLOW_BIONIC_STDIO_H
#include <stddef.h>
typedef struct bionic_file FILE;
FILE *fopen(const char *, const char *);
int fclose(FILE *);
size_t fread(void *, size_t, size_t, FILE *);
size_t fwrite(const void *, size_t, size_t, FILE *);
int rename(const char *, const char *);
int remove(const char *);
int fscanf(FILE *, const char *, ...) __attribute__((format(scanf, 2, 3)));
extern FILE *stdout, *stderr;
FILE *fdopen(int, const char *);
int fflush(FILE *);
char *fgets(char *, int, FILE *);
int putc(int, FILE *);
int puts(const char *);
int putchar(int);
int fputc(int, FILE *);
int fputs(const char *, FILE *);
int renameat(int, const char *, int, const char *);
int sscanf(const char *, const char *, ...) __attribute__((format(scanf, 2, 3)));
int printf(const char *, ...) __attribute__((format(printf, 1, 2)));
int fprintf(FILE *, const char *, ...) __attribute__((format(printf, 2, 3)));
int vsnprintf(char *, size_t, const char *, __builtin_va_list) __attribute__((format(printf, 3, 0)));
int snprintf(char *, size_t, const char *, ...) __attribute__((format(printf, 3, 4)));
#endif
