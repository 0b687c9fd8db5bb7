/* Declarations of bionic's sys/types.h that the agent uses: lengths of files have 64 bits where the functions named here have them. */
#ifndef TVMFLOW_BIONIC_SYS_TYPES_H
#define TVMFLOW_BIONIC_SYS_TYPES_H
#include <stddef.h>
#include <stdint.h>
typedef long ssize_t;
typedef int pid_t;
typedef unsigned int mode_t, uid_t, gid_t;
#ifdef __LP64__
typedef long off_t;
#else
typedef long long off_t; /* as with _FILE_OFFSET_BITS=64, for which mmap is mmap64 */
#endif
#endif
