/* A library with bionic's names and versions and glibc's functions behind them, made by bionic_shims.py: -DGLIBC="libc.so.6"
 * -DNAMES='"free", ...' -DTABLE=NAME, of the addresses to which its functions jump; -DSINCE: version of glibc's dlopen.
 *
 * Nothing here may call what it shims. bionic's mutexes and condition variables are smaller than glibc's: they hold the address of one.
 */
#include <dlfcn.h>
#include <sys/sysinfo.h>

__asm__(".symver real_dlopen, dlopen@" SINCE "\n.symver real_dlsym, dlsym@" SINCE);
extern void *real_dlopen(const char *, int), *real_dlsym(void *, const char *);

static const char *const names[] = {NAMES};
#define COUNT (sizeof names / sizeof *names)
void *TABLE[COUNT];

typedef struct {
  _Alignas(16) char bytes[64];
} object;
static object objects[64];
static int used;

static void *held(void *small) {
  object *found;
  __builtin_memcpy(&found, small, sizeof found);
  if (!found) {
    int at = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED);
    if (at >= 64) __builtin_trap();
    found = objects + at;
    __builtin_memcpy(small, &found, sizeof found);
  }
  return found;
}

static int (*real_lock)(void *), (*real_unlock)(void *), (*real_broadcast)(void *), (*real_wait)(void *, void *);
static int begun(void *small, const void *options) { return (void)options, __builtin_memset(small, 0, sizeof(void *)), 0; }
static int ended(void *small) { return (void)small, 0; }
static int lock(void *mutex) { return real_lock(held(mutex)); }
static int unlock(void *mutex) { return real_unlock(held(mutex)); }
static int broadcast(void *condition) { return real_broadcast(held(condition)); }
static int wait_for(void *condition, void *mutex) { return real_wait(held(condition), held(mutex)); }
static long counted(int name) { return name == 0x61 ? get_nprocs() : -1; } /* bionic's number */

static const struct {
  const char *name;
  void *own, *real;
} OWN[] = {
    {"pthread_mutex_init", begun, 0}, {"pthread_mutex_destroy", ended, 0}, {"pthread_cond_init", begun, 0}, {"pthread_cond_destroy", ended, 0},
    {"pthread_mutex_lock", lock, &real_lock}, {"pthread_mutex_unlock", unlock, &real_unlock}, {"pthread_cond_broadcast", broadcast, &real_broadcast},
    {"pthread_cond_wait", wait_for, &real_wait}, {"sysconf", counted, 0}};

static int is_same(const char *one, const char *other) {
  for (; *one && *one == *other; ++one, ++other) {}
  return *one == *other;
}

__attribute__((constructor)) static void begin(void) {
  void *glibc = real_dlopen(GLIBC, RTLD_NOW);
  for (unsigned i = 0; i < COUNT; ++i) {
    void *real = real_dlsym(glibc, names[i]);
    if (!real) __builtin_trap();
    TABLE[i] = real;
    for (unsigned j = 0; j < sizeof OWN / sizeof *OWN; ++j) {
      if (!is_same(names[i], OWN[j].name)) continue;
      if (OWN[j].real) *(void **)OWN[j].real = real;
      TABLE[i] = OWN[j].own;
    }
  }
}
