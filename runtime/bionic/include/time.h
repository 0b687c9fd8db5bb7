/* Declarations of bionic's time.h that the runtime in C uses */
#ifndef TVMFLOW_BIONIC_TIME_H
#define TVMFLOW_BIONIC_TIME_H
struct timespec {
  long tv_sec, tv_nsec;
};
#define CLOCK_MONOTONIC 1
int clock_gettime(int, struct timespec *);
int nanosleep(const struct timespec *, struct timespec *);
#endif
