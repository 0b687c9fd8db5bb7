/* Emulate thread-local variables before Android 10, whose loader does not support them: the compiler calls this for addresses.
 *
 * Each variable gets a number at its first use; each thread has an array of addresses by number, which is freed at its end.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The descriptor that the compiler emits for each variable. */
typedef struct {
  size_t size, alignment;
  uintptr_t number; /* from 1; 0: not numbered yet */
  const void *initial;
} variable;

typedef struct {
  uintptr_t count;
  void *places[];
} thread_places;

static pthread_key_t key;
static pthread_once_t once;
static pthread_mutex_t mutex; /* all zero is how bionic initializes one */
static uintptr_t numbered;

static void end_thread(void *argument) {
  thread_places *own = argument;
  for (uintptr_t i = 0; i < own->count; ++i) free(own->places[i]);
  free(own);
}

static void begin(void) {
  if (pthread_key_create(&key, end_thread)) abort();
}

static uintptr_t number_of(variable *wanted) {
  uintptr_t found = __atomic_load_n(&wanted->number, __ATOMIC_ACQUIRE);
  if (found) return found;
  pthread_mutex_lock(&mutex);
  found = wanted->number ? wanted->number : ++numbered;
  __atomic_store_n(&wanted->number, found, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&mutex);
  return found;
}

static void *made(const variable *wanted) {
  size_t alignment = wanted->alignment < sizeof(void *) ? sizeof(void *) : wanted->alignment;
  void *place;
  if (posix_memalign(&place, alignment, wanted->size)) abort();
  if (wanted->initial) memcpy(place, wanted->initial, wanted->size);
  else memset(place, 0, wanted->size);
  return place;
}

__attribute__((visibility("hidden"))) void *__emutls_get_address(variable *wanted) {
  pthread_once(&once, begin);
  uintptr_t number = number_of(wanted);
  thread_places *own = pthread_getspecific(key);
  if (!own || own->count < number) {
    uintptr_t before = own ? own->count : 0, count = number + 7;
    own = realloc(own, sizeof *own + count * sizeof *own->places);
    if (!own) abort();
    memset(own->places + before, 0, (count - before) * sizeof *own->places);
    own->count = count;
    if (pthread_setspecific(key, own)) abort();
  }
  if (!own->places[number - 1]) own->places[number - 1] = made(wanted);
  return own->places[number - 1];
}
