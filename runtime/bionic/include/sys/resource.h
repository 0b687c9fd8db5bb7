/* Declarations of bionic's sys/resource.h that runtime/measure uses */
#ifndef TVMFLOW_BIONIC_SYS_RESOURCE_H
#define TVMFLOW_BIONIC_SYS_RESOURCE_H
#define RUSAGE_SELF 0
struct timeval {
  long tv_sec, tv_usec;
};
struct rusage {
  struct timeval ru_utime, ru_stime;
  long ru_maxrss, ru_ixrss, ru_idrss, ru_isrss, ru_minflt, ru_majflt, ru_nswap, ru_inblock, ru_oublock, ru_msgsnd, ru_msgrcv, ru_nsignals, ru_nvcsw, ru_nivcsw;
};
#define RLIMIT_CORE 4
#define RLIM_INFINITY (~0ul)
struct rlimit {
  unsigned long rlim_cur, rlim_max;
};
int setrlimit(int, const struct rlimit *);
int getrusage(int, struct rusage *);
#endif
