/* Manage the folder of an agent: complete files named by digest, partial uploads as digest.part. */
#define _GNU_SOURCE
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PART ".part"
#define NAME_SIZE (DIGEST_TEXT + sizeof PART)

int is_digest(const char *text) {
  size_t size = text ? strspn(text, "0123456789abcdef") : 0;
  return size == DIGEST_TEXT && !text[size];
}

int store_open(store *made, const char *folder, uint64_t limit) {
  if (mkdir(folder, 0700) && errno != EEXIST) return -1;
  if (!realpath(folder, made->path)) return -1;
  made->limit = limit;
  made->folder = open(made->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return made->folder < 0 ? -1 : 0;
}

static int64_t size_of(const store *in, const char *name) {
  struct stat found;
  if (fstatat(in->folder, name, &found, AT_SYMLINK_NOFOLLOW) || !S_ISREG(found.st_mode)) return -1;
  return (int64_t)found.st_size;
}

int64_t store_find(const store *in, const char *digest) {
  if (!is_digest(digest)) return -1;
  int64_t size = size_of(in, digest);
  if (size >= 0) utimensat(in->folder, digest, NULL, AT_SYMLINK_NOFOLLOW); /* now */
  return size;
}

const char *store_path(const store *in, const char *digest, char path[STORE_PATH]) {
  if (store_find(in, digest) < 0) return NULL;
  snprintf(path, STORE_PATH, "%s/%s", in->path, digest);
  return path;
}

/* Return whether a file of the folder is ours: its name begins with a digest. */
static int is_ours(const char *name) {
  char digest[DIGEST_TEXT + 1] = {0};
  if (strlen(name) < DIGEST_TEXT) return 0;
  memcpy(digest, name, DIGEST_TEXT);
  return is_digest(digest) && (!name[DIGEST_TEXT] || !strcmp(name + DIGEST_TEXT, PART));
}

/* Return the bytes of all files but one; oldest: the name of the least recently used, "" for none. */
static uint64_t find_oldest(const store *in, const char *but, char oldest[NAME_SIZE]) {
  uint64_t bytes = 0;
  struct timespec first = {0, 0};
  oldest[0] = 0;
  int copy = openat(in->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
  if (!folder && copy >= 0) close(copy);
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    struct stat found;
    if (!is_ours(entry->d_name) || !strncmp(entry->d_name, but, DIGEST_TEXT)) continue;
    if (fstatat(in->folder, entry->d_name, &found, AT_SYMLINK_NOFOLLOW)) continue;
    bytes += (uint64_t)found.st_size;
    const struct timespec at = found.st_mtim;
    if (oldest[0] && (at.tv_sec > first.tv_sec || (at.tv_sec == first.tv_sec && at.tv_nsec >= first.tv_nsec))) continue;
    first = at;
    snprintf(oldest, NAME_SIZE, "%s", entry->d_name);
  }
  if (folder) closedir(folder);
  return bytes;
}

static uint64_t free_bytes(const store *in) {
  struct statvfs found;
  return fstatvfs(in->folder, &found) ? UINT64_MAX : (uint64_t)found.f_bavail * found.f_frsize;
}

/* Free space for a file, of which `there` bytes are stored. */
static store_status make_room(const store *in, const char *digest, uint64_t size, uint64_t there) {
  char oldest[NAME_SIZE];
  if (size > in->limit) return STORE_TOO_LARGE;
  for (;;) {
    uint64_t others = find_oldest(in, digest, oldest);
    int fits = others + size <= in->limit;
    if (fits && free_bytes(in) > size - there) return STORE_OK;
    if (!oldest[0]) return STORE_FULL;
    if (unlinkat(in->folder, oldest, 0)) return STORE_FAILED;
  }
}

static void part_name(const char *digest, char name[NAME_SIZE]) { snprintf(name, NAME_SIZE, "%s%s", digest, PART); }

/* Hash the stored part of an earlier upload. */
static int resume(upload *begun) {
  unsigned char bytes[1 << 16];
  for (;;) {
    ssize_t count = read(begun->file, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (!count) return 0;
    sha256_add(&begun->sum, bytes, (size_t)count);
    begun->done += (uint64_t)count;
  }
}

store_status upload_begin(store *in, const char *digest, uint64_t size, upload *begun) {
  char name[NAME_SIZE];
  *begun = (upload){.file = -1, .size = size};
  memcpy(begun->name, digest, DIGEST_TEXT);
  sha256_begin(&begun->sum);
  part_name(digest, name);
  int64_t there = size_of(in, name);
  if (there > (int64_t)size) there = unlinkat(in->folder, name, 0) ? there : -1;
  store_status status = make_room(in, digest, size, there > 0 ? (uint64_t)there : 0);
  if (status) return status;
  begun->file = openat(in->folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0700);
  if (begun->file < 0) return errno == ENOSPC || errno == EDQUOT ? STORE_FULL : STORE_FAILED;
  if (!resume(begun)) return STORE_OK;
  upload_stop(begun);
  return STORE_FAILED;
}

store_status upload_add(store *in, upload *begun, const void *bytes, uint64_t size) {
  const unsigned char *at = bytes;
  char name[NAME_SIZE];
  if (begun->file < 0 || size > begun->size - begun->done) return STORE_FAILED;
  sha256_add(&begun->sum, bytes, size);
  for (uint64_t left = size; left;) {
    ssize_t count = write(begun->file, at, left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      int full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
      upload_stop(begun);
      part_name(begun->name, name);
      if (full) unlinkat(in->folder, name, 0);
      return full ? STORE_FULL : STORE_FAILED;
    }
    at += count;
    left -= (uint64_t)count;
  }
  begun->done += size;
  return STORE_OK;
}

store_status upload_end(store *in, upload *begun) {
  unsigned char digest[SHA256_SIZE];
  char said[DIGEST_TEXT + 1], name[NAME_SIZE];
  sha256_end(&begun->sum, digest);
  for (int i = 0; i < SHA256_SIZE; ++i) snprintf(said + 2 * i, 3, "%02x", digest[i]);
  part_name(begun->name, name);
  int failed = begun->file < 0 || begun->done != begun->size;
  if (begun->file >= 0 && close(begun->file)) failed = 1;
  begun->file = -1;
  if (failed || strcmp(said, begun->name)) {
    unlinkat(in->folder, name, 0);
    return failed ? STORE_FAILED : STORE_WRONG_DIGEST;
  }
  return renameat(in->folder, name, in->folder, begun->name) ? STORE_FAILED : STORE_OK;
}

void upload_stop(upload *begun) {
  if (begun->file >= 0) close(begun->file);
  begun->file = -1;
}
