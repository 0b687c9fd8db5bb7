/* What a measurement has to know of the processor beside its own times: how far the cores are from each other, and how fast each computes now.
 *
 * A hypervisor moves virtual cores between clusters of a processor, and nothing in /proc says so: only the round trip of a line of the cache does. A clock
 * that was lowered shows in the time of a loop of known length.
 */
#ifndef TVMFLOW_MACHINE_STATE_H
#define TVMFLOW_MACHINE_STATE_H

#define MACHINE_STATE_CPUS 64 /* at most so many are looked at */

/* Measure on `count` CPUs by number. loops_ns: of each, nanoseconds of a loop of 128000 additions, of which none waits for another;
 * round_trips_ns: of a line of the cache between the first CPU and each, 0 for the first itself. -1 stands where it could not be measured: the CPU is
 * not ours, or another process kept it busy. Takes less than a millisecond for each CPU of a quiet machine, limit_us of each at most. Returns how many
 * CPUs were measured. */
int machine_state(const int *cpus, int count, unsigned limit_us, double *loops_ns, double *round_trips_ns);

#endif
