/* Declarations of bionic's pthread.h that the runtime in C uses; sizes are those of its ABIs of 64 and of 32 bits. */
#ifndef TVMFLOW_BIONIC_PTHREAD_H
#define TVMFLOW_BIONIC_PTHREAD_H
#include <stdint.h>
typedef long pthread_t;
typedef int pthread_key_t, pthread_once_t;
#ifdef __LP64__
typedef struct { int32_t words[10]; } pthread_mutex_t;
typedef struct { int32_t words[12]; } pthread_cond_t;
#else
typedef struct { int32_t words[1]; } pthread_mutex_t;
typedef struct { int32_t words[1]; } pthread_cond_t;
#endif
typedef struct pthread_attr pthread_attr_t;
typedef long pthread_mutexattr_t, pthread_condattr_t;
#define PTHREAD_ONCE_INIT 0
int pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_join(pthread_t, void **);
int pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int pthread_mutex_destroy(pthread_mutex_t *);
int pthread_mutex_lock(pthread_mutex_t *);
int pthread_mutex_unlock(pthread_mutex_t *);
int pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int pthread_cond_destroy(pthread_cond_t *);
int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int pthread_cond_signal(pthread_cond_t *);
int pthread_cond_broadcast(pthread_cond_t *);
int pthread_once(pthread_once_t *, void (*)(void));
int pthread_key_create(pthread_key_t *, void (*)(void *));
void *pthread_getspecific(pthread_key_t);
int pthread_setspecific(pthread_key_t, const void *);
#endif
