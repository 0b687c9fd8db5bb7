/* Declarations of bionic's sys/file.h that the agent uses */
#ifndef TVMFLOW_BIONIC_SYS_FILE_H
#define TVMFLOW_BIONIC_SYS_FILE_H
#define LOCK_SH 1
#define LOCK_EX 2
#define LOCK_NB 4
#define LOCK_UN 8
int flock(int, int);
#endif
