/* Declarations of bionic's semaphore.h that runtime/measure uses */
#ifndef TVMFLOW_BIONIC_SEMAPHORE_H
#define TVMFLOW_BIONIC_SEMAPHORE_H
typedef struct {
  unsigned int count;
#ifdef __LP64__
  int reserved[3];
#endif
} sem_t;
int sem_init(sem_t *, int, unsigned int);
int sem_destroy(sem_t *);
int sem_post(sem_t *);
int sem_wait(sem_t *);
#endif
