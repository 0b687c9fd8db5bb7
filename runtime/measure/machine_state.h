/* Measure the state of the processor for a measurement: the latency between cores, and the current speed of each.
 *
 * A hypervisor moves virtual cores between clusters of a processor, and /proc does not show it: only the round trip of a cache line does. A reduced
 * clock rate shows in the time of a loop of known length.
 */
#ifndef TVMFLOW_MACHINE_STATE_H
#define TVMFLOW_MACHINE_STATE_H

#define MACHINE_STATE_CPUS 64 /* most CPUs that are measured */

/* Measure on `count` CPUs by number. loops_ns: of each, nanoseconds of a loop of 128000 additions, of which none waits for another;
 * round_trips_ns: of a line of the cache between the first CPU and each, 0 for the first itself. -1 if it could not be measured: the CPU is
 * not allowed, or another process kept it busy. Takes less than a millisecond for each CPU of a quiet machine, limit_us of each at most. Returns how many
 * CPUs were measured. */
int machine_state(const int *cpus, int count, unsigned limit_us, double *loops_ns, double *round_trips_ns);

#endif
