/* Tell instances that they are in a child of fork: it has none of their threads, and locks that other threads held stay locked. */
#ifndef TVMFLOW_FORKS_H
#define TVMFLOW_FORKS_H

#include <pthread.h>

/* An instance in the list of those to tell. */
typedef struct forks_entry {
  struct forks_entry *next, **place;
} forks_entry;

/* Call in_child for the entry in each child, before fork returns there; it is one function for all entries. Return nonzero if out of memory. */
int forks_add(forks_entry *added, void (*in_child)(forks_entry *));
void forks_remove(forks_entry *removed);
/* Make a lock free in a child; return whether a thread held it, which is not there. */
int forks_renew(pthread_mutex_t *lock);

#endif
