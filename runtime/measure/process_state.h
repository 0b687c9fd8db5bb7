/* State of a measured process and its machine: monotonic counters, and the current state of the processor. */
#ifndef TVMFLOW_PROCESS_STATE_H
#define TVMFLOW_PROCESS_STATE_H

/* Of the calling process; -1 for values that the system does not report. runtime/rpc/rpc.c returns them in this order. */
typedef struct {
  double wall_s;     /* of a monotonic clock */
  double own_s;      /* processor seconds of the process */
  double waited_s;   /* for a processor that others had: the sum over the threads that run now */
  double switches;   /* how often one of its threads was taken off a processor */
  double busy_s;     /* processor seconds of the whole machine */
  double processors; /* of the machine */
  double khz;        /* lowest clock of the CPUs that were looked at */
  double loop_ns;    /* of a loop of known length (machine_state.h) on the slowest of them */
  double round_trip_ns; /* longest, of a line of the cache between the first of them and another */
} process_state;

/* Read the counters and, where `look` is not 0, look at the CPUs on which the `threads` threads that have used most ran last: at all CPUs that the
 * process may use, where these are no more. The last three are -1 where nobody looks. The counters are read before
 * the look, which takes up to 20 ms for each CPU that others keep busy, less than a millisecond otherwise. */
void read_process_state(unsigned threads, int look, process_state *found);

/* Seconds that the threads of a process waited for a processor that others had, as waited_s; -1 where the system does not tell. */
double waited_for_processor(int process);

#endif
