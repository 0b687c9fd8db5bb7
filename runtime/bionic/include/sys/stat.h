/* Declarations of bionic's sys/stat.h that the agent uses: the layout of each processor. */
#ifndef TVMFLOW_BIONIC_SYS_STAT_H
#define TVMFLOW_BIONIC_SYS_STAT_H
#include <sys/types.h>
#include <time.h>
struct stat {
#if defined __aarch64__
  unsigned long st_dev, st_ino;
  unsigned int st_mode, st_nlink, st_uid, st_gid;
  unsigned long st_rdev, pad1;
  long st_size;
  int st_blksize, pad2;
  long st_blocks;
#elif defined __x86_64__
  unsigned long st_dev, st_ino, st_nlink;
  unsigned int st_mode, st_uid, st_gid, pad0;
  unsigned long st_rdev;
  long st_size, st_blksize, st_blocks;
#elif defined __arm__
  unsigned long long st_dev;
  unsigned char pad0[4];
  unsigned long ino_low;
  unsigned int st_mode, st_nlink, st_uid, st_gid;
  unsigned long long st_rdev;
  unsigned char pad3[4];
  long long st_size;
  unsigned long st_blksize;
  unsigned long long st_blocks;
#else
#error no layout of struct stat for this processor
#endif
  struct timespec st_atim, st_mtim, st_ctim;
#if defined __aarch64__
  unsigned int unused[2];
#elif defined __x86_64__
  long unused[3];
#else
  unsigned long long st_ino;
#endif
};
#define st_mtime st_mtim.tv_sec
#define S_IFMT 0170000
#define S_ISREG(mode) (((mode) & S_IFMT) == 0100000)
#define S_ISDIR(mode) (((mode) & S_IFMT) == 0040000)
#define S_ISLNK(mode) (((mode) & S_IFMT) == 0120000)
#define UTIME_NOW 0x3fffffff
#define UTIME_OMIT 0x3ffffffe
int fstat(int, struct stat *);
int fstatat(int, const char *, struct stat *, int);
int mkdir(const char *, mode_t);
mode_t umask(mode_t);
int utimensat(int, const char *, const struct timespec[2], int);
#endif
