/* Declarations of bionic's errno.h that the agent uses: the kernel's numbers. */
#ifndef TVMFLOW_BIONIC_ERRNO_H
#define TVMFLOW_BIONIC_ERRNO_H
int *__errno(void) __attribute__((const));
#define errno (*__errno())
#define ENOENT 2
#define EFBIG 27
#define ENOTSOCK 88
#define EINTR 4
#define EAGAIN 11
#define EEXIST 17
#define ENOSPC 28
#define EDQUOT 122
#endif
