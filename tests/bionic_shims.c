/* A library with bionic's names and versions and glibc's functions behind them, made by bionic_shims.py: -DGLIBC="libc.so.6"
 * -DNAMES='"free", ...' -DTABLE=NAME, of the addresses to which its functions jump; -DSINCE: version of glibc's dlopen.
 *
 * Nothing here may call what it shims. bionic's mutexes, condition variables and semaphores are smaller than glibc's: they hold the address
 * of one.
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
static int (*real_sem_init)(void *, int, unsigned), (*real_post)(void *), (*real_sem_wait)(void *);
static int sem_begun(void *small, int shared, unsigned value) { return begun(small, 0), real_sem_init(held(small), shared, value); }
static int post(void *semaphore) { return real_post(held(semaphore)); }
static int sem_wait_for(void *semaphore) { return real_sem_wait(held(semaphore)); }

#ifdef IS_LIBC
void *stdout, *stderr;
static void (*real_exit)(int);
static int *(*real_errno)(void);
static int *number(void) { return real_errno(); }
/* The start of a program: its arguments lie on the stack. */
static void start(void **stack, void (*unused)(void), int (*program)(int, char **, char **), const void *arrays) {
  (void)unused, (void)arrays;
  const int count = (int)(long)*stack;
  char **words = (char **)stack + 1;
  real_exit(program(count, words, words + count + 1));
}
static void find_objects(void *glibc) {
  stdout = *(void **)real_dlsym(glibc, "stdout");
  stderr = *(void **)real_dlsym(glibc, "stderr");
  *(void **)&real_exit = real_dlsym(glibc, "exit");
  *(void **)&real_errno = real_dlsym(glibc, "__errno_location");
}
#else
static void start(void) {}
static void number(void) {}
static void find_objects(void *glibc) { (void)glibc; }
#endif
static void *opened(const char *name, int mode) { return real_dlopen(name, mode | RTLD_NOW); } /* 0 on 32 bits */
static long counted(int name) { return name == 0x61 ? get_nprocs() : -1; } /* bionic's number */

static const struct {
  const char *name;
  void *own, *real;
} OWN[] = {
    {"pthread_mutex_init", begun, 0}, {"pthread_mutex_destroy", ended, 0}, {"pthread_cond_init", begun, 0}, {"pthread_cond_destroy", ended, 0},
    {"pthread_mutex_lock", lock, &real_lock}, {"pthread_mutex_unlock", unlock, &real_unlock}, {"pthread_cond_broadcast", broadcast, &real_broadcast},
    {"pthread_cond_wait", wait_for, &real_wait}, {"sysconf", counted, 0}, {"sem_init", sem_begun, &real_sem_init}, {"sem_destroy", ended, 0},
    {"sem_post", post, &real_post}, {"sem_wait", sem_wait_for, &real_sem_wait}, {"__libc_init", start, 0}, {"__errno", number, 0},
    {"dlopen", opened, 0}};

/* bionic's structures of files have 64 bits on 32-bit Arm, too. */
static const char *const WIDE[][2] = {{"fstat", "fstat64"}, {"fstatat", "fstatat64"}, {"readdir", "readdir64"}};

static int is_same(const char *one, const char *other) {
  for (; *one && *one == *other; ++one, ++other) {}
  return *one == *other;
}

__attribute__((constructor)) static void begin(void) {
  void *glibc = real_dlopen(GLIBC, RTLD_NOW);
  find_objects(glibc);
  for (unsigned i = 0; i < COUNT; ++i) {
    const char *name = names[i];
    for (unsigned j = 0; j < sizeof WIDE / sizeof *WIDE; ++j)
      if (is_same(name, WIDE[j][0])) name = WIDE[j][1];
    void *real = real_dlsym(glibc, name);
    TABLE[i] = real;
    for (unsigned j = 0; j < sizeof OWN / sizeof *OWN; ++j) {
      if (!is_same(names[i], OWN[j].name)) continue;
      if (OWN[j].real) *(void **)OWN[j].real = real;
      TABLE[i] = OWN[j].own;
    }
    if (!TABLE[i]) __builtin_trap();
  }
}
