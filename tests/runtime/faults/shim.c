/* Fails one call of the C library: the FAULT_AT-th, or the one that arm() names. Linked with a program, or loaded before it.
 *
 * malloc and calloc fail in the first thread alone: glibc itself ends a process that has no memory for a new thread's variables. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static atomic_long calls, fails_at, held;

static int fails(void) {
  const long at = atomic_load(&fails_at);
  return at && atomic_fetch_add(&calls, 1) + 1 == at;
}

static int fails_here(void) { return getpid() == gettid() && fails(); }

static void *count(void *made) {
  if (made) atomic_fetch_add(&held, 1);
  return made;
}

void arm(long at) {
  atomic_store(&calls, 0);
  atomic_store(&fails_at, at);
}

long disarm(void) {
  atomic_store(&fails_at, 0);
  return atomic_load(&calls);
}

long held_blocks(void) { return atomic_load(&held); }

void *malloc(size_t size) { return fails_here() ? (errno = ENOMEM, NULL) : count(__libc_malloc(size)); }

void *calloc(size_t n, size_t size) { return fails_here() ? (errno = ENOMEM, NULL) : count(__libc_calloc(n, size)); }

void *realloc(void *memory, size_t size) {
  if (fails_here()) return errno = ENOMEM, NULL;
  void *made = __libc_realloc(memory, size);
  if (!memory) count(made);
  return made;
}

void *aligned_alloc(size_t alignment, size_t size) { return fails() ? (errno = ENOMEM, NULL) : count(__libc_memalign(alignment, size)); }

int posix_memalign(void **memory, size_t alignment, size_t size) {
  if (fails()) return ENOMEM;
  *memory = count(__libc_memalign(alignment, size));
  return *memory ? 0 : ENOMEM;
}

void free(void *memory) {
  if (memory) atomic_fetch_sub(&held, 1);
  __libc_free(memory);
}

int pthread_create(pthread_t *made, const pthread_attr_t *attributes, void *(*run)(void *), void *data) {
  return fails() ? EAGAIN : REAL(pthread_create)(made, attributes, run, data);
}

int pthread_mutex_init(pthread_mutex_t *made, const pthread_mutexattr_t *attributes) {
  return fails() ? ENOMEM : REAL(pthread_mutex_init)(made, attributes);
}

int pthread_cond_init(pthread_cond_t *made, const pthread_condattr_t *attributes) {
  return fails() ? ENOMEM : REAL(pthread_cond_init)(made, attributes);
}

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set) {
  return fails() ? EINVAL : REAL(pthread_setaffinity_np)(thread, size, set);
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
  return fails() ? (errno = EPERM, -1) : REAL(sched_getaffinity)(process, size, set);
}

int sched_getcpu(void) { return fails() ? (errno = ENOSYS, -1) : REAL(sched_getcpu)(); }

int madvise(void *memory, size_t size, int advice) { return fails() ? (errno = EINVAL, -1) : REAL(madvise)(memory, size, advice); }

void *mmap(void *address, size_t size, int access, int flags, int file, off_t offset) {
  return fails() ? (errno = ENOMEM, MAP_FAILED) : REAL(mmap)(address, size, access, flags, file, offset);
}

FILE *fopen(const char *path, const char *mode) { return fails() ? (errno = EMFILE, NULL) : REAL(fopen)(path, mode); }

int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) {
  return fails() ? ENOMEM : REAL(__register_atfork)(before, parent, child, library);
}

/* Read what is to fail, and at the end write how many calls there were. */
__attribute__((constructor)) static void begin(void) {
  const char *at = getenv("FAULT_AT");
  if (at) arm(atol(at));
}

__attribute__((destructor)) static void end(void) {
  const char *path = getenv("FAULT_COUNT");
  const long made = disarm();
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "%ld\n", made);
  fclose(file);
}
