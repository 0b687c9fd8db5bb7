#define _GNU_SOURCE
#include "forks.h"

#include <stddef.h>

#if defined(__ANDROID__) || defined(__wasi__) /* apps do not fork there */

int forks_add(forks_entry *added, void (*in_child)(forks_entry *)) { return (void)added, (void)in_child, 0; }
void forks_remove(forks_entry *removed) { (void)removed; }
int forks_renew(pthread_mutex_t *lock) { return (void)lock, 0; }

#else

/* No thread waits for another while it holds this. fork takes it, so that the list is whole in a child. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static forks_entry *entries;
static void (*tell)(forks_entry *);

static void before_fork(void) { pthread_mutex_lock(&mutex); }

static void after_fork(void) { pthread_mutex_unlock(&mutex); }

static void enter_child(void) {
  for (forks_entry *at = entries; at; at = at->next) tell(at);
  pthread_mutex_unlock(&mutex);
}

/* glibc forgets handlers of a library that it unloads if they were registered with a handle that __cxa_finalize is called with. Not all compilers
 * link what does that for pthread_atfork: the handle is our own. */
#ifdef __GLIBC__
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
void __cxa_finalize(void *);
static char handle;

static int register_handlers(void) { return __register_atfork(before_fork, after_fork, enter_child, &handle); }

__attribute__((destructor)) static void forget_handlers(void) { __cxa_finalize(&handle); }
#else
static int register_handlers(void) { return pthread_atfork(before_fork, after_fork, enter_child); }
#endif

/* Register the handlers once. The system forgets them when it unloads the library. */
static int watch(void (*in_child)(forks_entry *)) {
  if (tell) return 0;
  if (register_handlers()) return -1;
  tell = in_child;
  return 0;
}

int forks_add(forks_entry *added, void (*in_child)(forks_entry *)) {
  pthread_mutex_lock(&mutex);
  const int failed = watch(in_child);
  if (!failed) {
    *added = (forks_entry){entries, &entries};
    if (entries) entries->place = &added->next;
    entries = added;
  }
  pthread_mutex_unlock(&mutex);
  return failed;
}

void forks_remove(forks_entry *removed) {
  pthread_mutex_lock(&mutex);
  *removed->place = removed->next;
  if (removed->next) removed->next->place = removed->place;
  pthread_mutex_unlock(&mutex);
}

int forks_renew(pthread_mutex_t *lock) {
  const int was_held = pthread_mutex_trylock(lock) != 0;
  pthread_mutex_init(lock, NULL); /* of glibc and musl: allocates nothing, does not fail */
  return was_held;
}

#endif
