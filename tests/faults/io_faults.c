/* Fails one call that makes, writes, moves or removes a file below $DISK: the one that arm() names, or that and all that need room behind it.
 * Loaded before Python, which calls arm() and disarm(). A short write writes half of what was given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHORT_WRITE = -1 };
static atomic_long calls, fails_at;
static int fault, stays;
static char failed[32];

void arm(long at, int number, int persistent) {
  fault = number, stays = persistent, failed[0] = 0;
  atomic_store(&calls, 0);
  atomic_store(&fails_at, at);
}

long disarm(void) {
  atomic_store(&fails_at, 0);
  return atomic_load(&calls);
}

const char *failed_call(void) { return failed; }

static int is_below(const char *path) {
  const char *disk = getenv("DISK");
  return disk && !strncmp(path, disk, strlen(disk));
}

static int is_file_below(int file) {
  char link[40], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path);
}

static int is_path_below(int folder, const char *path) {
  if (path[0] == '/') return is_below(path);
  if (folder != AT_FDCWD) return is_file_below(folder);
  char here[PATH_MAX];
  return getcwd(here, sizeof here) && is_below(here);
}

/* Return whether this call, of which it is known that it is below the disk, fails. needs_room: it does on a full disk. */
static int fails(const char *name, int needs_room) {
  const long at = atomic_load(&fails_at);
  if (!at) return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  if (number != at && !(stays && needs_room && number > at)) return 0;
  if (stays && !needs_room) return 0;
  if (fault == SHORT_WRITE && strcmp(name, "write")) return 0;
  if (!failed[0]) snprintf(failed, sizeof failed, "%s", name);
  errno = fault;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENS(name)                                                                                          \
  int name(const char *path, int flags, ...) {                                                               \
    va_list more;                                                                                            \
    va_start(more, flags);                                                                                   \
    const mode_t mode = va_arg(more, mode_t);                                                                \
    va_end(more);                                                                                            \
    const int makes = flags & (O_CREAT | O_TRUNC);                                                           \
    if (is_path_below(AT_FDCWD, path) && fails("open", makes)) return -1;                                    \
    return REAL(name)(path, flags, mode);                                                                    \
  }
OPENS(open)
OPENS(open64)

#define WRITES(name, parameters, ...)                                                                        \
  ssize_t name parameters {                                                                                  \
    if (is_file_below(file) && fails("write", 1)) {                                                          \
      if (fault != SHORT_WRITE) return -1;                                                                   \
      size = size > 1 ? size / 2 : size;                                                                     \
    }                                                                                                        \
    return REAL(name)(__VA_ARGS__);                                                                          \
  }
WRITES(write, (int file, const void *from, size_t size), file, from, size)
WRITES(pwrite64, (int file, const void *from, size_t size, off64_t at), file, from, size, at)
WRITES(sendfile, (int file, int from, off_t *at, size_t size), file, from, at, size)
WRITES(sendfile64, (int file, int from, off64_t *at, size_t size), file, from, at, size)

#define ON_FILE(name, parameters, ...)                                                                       \
  int name parameters { return is_file_below(file) && fails(#name, 0) ? -1 : REAL(name)(__VA_ARGS__); }
ON_FILE(fsync, (int file), file)
ON_FILE(fdatasync, (int file), file)
ON_FILE(ftruncate64, (int file, off64_t size), file, size)

#define ON_PATH(name, room, parameters, ...)                                                                 \
  int name parameters { return is_path_below(AT_FDCWD, path) && fails(#name, room) ? -1 : REAL(name)(__VA_ARGS__); }
ON_PATH(mkdir, 1, (const char *path, mode_t mode), path, mode)
ON_PATH(unlink, 0, (const char *path), path)
ON_PATH(rmdir, 0, (const char *path), path)
ON_PATH(rename, 0, (const char *path, const char *to), path, to)
ON_PATH(link, 1, (const char *path, const char *to), path, to)
ON_PATH(symlink, 1, (const char *to, const char *path), to, path)

int unlinkat(int folder, const char *path, int flags) {
  return is_path_below(folder, path) && fails("unlink", 0) ? -1 : REAL(unlinkat)(folder, path, flags);
}
