/* Declarations of bionic's fcntl.h that the agent uses: the kernel's numbers. */
#ifndef TVMFLOW_BIONIC_FCNTL_H
#define TVMFLOW_BIONIC_FCNTL_H
#include <sys/types.h>
#define O_RDONLY 0
#define O_WRONLY 01
#define O_RDWR 02
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NONBLOCK 04000
#define O_CLOEXEC 02000000
#if defined __aarch64__ || defined __arm__
#define O_DIRECTORY 040000
#define O_NOFOLLOW 0100000
#define O_LARGEFILE 0400000
#else
#define O_DIRECTORY 0200000
#define O_NOFOLLOW 0400000
#define O_LARGEFILE 0100000
#endif
#define AT_FDCWD (-100)
#define AT_SYMLINK_NOFOLLOW 0x100
#ifdef __LP64__
int open(const char *, int, ...);
int openat(int, const char *, int, ...);
#else
int open(const char *, int, ...) __asm__("open64");
int openat(int, const char *, int, ...) __asm__("openat64");
#endif
#endif
