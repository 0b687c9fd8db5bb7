/* Declarations of bionic's sys/wait.h that the agent uses */
#ifndef TVMFLOW_BIONIC_SYS_WAIT_H
#define TVMFLOW_BIONIC_SYS_WAIT_H
#include <sys/types.h>
#define WNOHANG 1
#define WTERMSIG(status) ((status) & 0x7f)
#define WEXITSTATUS(status) (((status) & 0xff00) >> 8)
#define WIFEXITED(status) (WTERMSIG(status) == 0)
#define WIFSIGNALED(status) (WTERMSIG((status) + 1) >= 2)
pid_t waitpid(pid_t, int *, int);
#endif
