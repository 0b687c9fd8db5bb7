/* Declarations of bionic's unistd.h that the runtime in C uses; its numbers of sysconf are its own. */
#ifndef TVMFLOW_BIONIC_UNISTD_H
#define TVMFLOW_BIONIC_UNISTD_H
#define _SC_CLK_TCK 0x06
#define _SC_PAGESIZE 0x27
#define _SC_NPROCESSORS_ONLN 0x61
int getpid(void);
long sysconf(int);
long syscall(long, ...);
#endif
