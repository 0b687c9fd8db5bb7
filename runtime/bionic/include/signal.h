/* Declarations of bionic's signal.h that the agent uses: the kernel's numbers. */
#ifndef TVMFLOW_BIONIC_SIGNAL_H
#define TVMFLOW_BIONIC_SIGNAL_H
#include <sys/types.h>
#define SIGILL 4
#define SIGABRT 6
#define SIGBUS 7
#define SIGFPE 8
#define SIGKILL 9
#define SIGSEGV 11
#define SIGPIPE 13
#define SIGTERM 15
#define SIGCHLD 17
#define SIG_DFL ((void (*)(int))0)
#define SIG_IGN ((void (*)(int))1)
#define SIG_ERR ((void (*)(int))-1)
void (*signal(int, void (*)(int)))(int);
int kill(pid_t, int);
#endif
