/* Declarations of bionic's dirent.h that runtime/measure uses */
#ifndef TVMFLOW_BIONIC_DIRENT_H
#define TVMFLOW_BIONIC_DIRENT_H
#include <stdint.h>
typedef struct bionic_folder DIR;
struct dirent {
  uint64_t d_ino;
  int64_t d_off;
  unsigned short d_reclen;
  unsigned char d_type;
  char d_name[256];
};
DIR *opendir(const char *);
#define DT_DIR 4
#define DT_REG 8
DIR *fdopendir(int);
struct dirent *readdir(DIR *);
int closedir(DIR *);
#endif
