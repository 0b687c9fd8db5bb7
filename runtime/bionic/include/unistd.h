/* Declarations of bionic's unistd.h that the runtime in C uses; its numbers of sysconf are its own. */
#ifndef TVMFLOW_BIONIC_UNISTD_H
#define TVMFLOW_BIONIC_UNISTD_H
#define _SC_CLK_TCK 0x06
#define _SC_PAGESIZE 0x27
#define _SC_NPROCESSORS_ONLN 0x61
#include <sys/types.h>
#define AT_REMOVEDIR 0x200
#define F_OK 0
#define R_OK 4
int access(const char *, int);
int close(int);
int dup2(int, int);
int pipe2(int[2], int);
int unlinkat(int, const char *, int);
int usleep(unsigned int);
pid_t fork(void);
pid_t getppid(void);
uid_t geteuid(void);
ssize_t read(int, void *, size_t);
ssize_t write(int, const void *, size_t);
_Noreturn void _exit(int);
int getpid(void);
long sysconf(int);
long syscall(long, ...);
#endif
