/* Declarations of bionic's sys/statvfs.h that the agent uses */
#ifndef TVMFLOW_BIONIC_SYS_STATVFS_H
#define TVMFLOW_BIONIC_SYS_STATVFS_H
#include <stdint.h>
struct statvfs {
  unsigned long f_bsize, f_frsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree, f_favail, f_fsid, f_flag, f_namemax;
#ifdef __LP64__
  uint32_t reserved[6];
#endif
};
int fstatvfs(int, struct statvfs *);
#endif
