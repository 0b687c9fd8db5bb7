/* Choose the number of threads of each kernel of a plan, its team, by trials.
 *
 * Handing a loop to other threads takes 0.1 to 50 us, depending on their cores, the load of these, and whether the threads sleep; it
 * changes from one minute to the next. So a few runs try teams: all threads, then half as many, down to one. Each kernel keeps the team that was
 * clearly the fastest, unless the network is as fast with all threads in every kernel, or with one. The trials are repeated after a pause, in a small share of all runs.
 */
#ifndef TVMFLOW_TEAMS_H
#define TVMFLOW_TEAMS_H

#include <stdint.h>

#define TEAMS_RUNS 5 /* runs of each trial: disturbances of one or two of them do not matter */

typedef struct {
  uint32_t ns, best_ns, all_ns; /* least time of this trial, of the best team, and with all threads */
  uint8_t tried, best, chosen; /* teams: of this trial, the fastest so far, between trials */
  uint8_t is_open; /* whether smaller teams will be tried */
} teams_step;

typedef struct {
  teams_step *steps;
  uint32_t count, all; /* steps, threads */
  uint64_t spin_ns;    /* how long a thread without work spins before it sleeps: set by the caller, 0 at first */
  uint32_t largest;    /* of the chosen teams */
  uint32_t tried;      /* the team of this trial; 0 between trials */
  uint32_t run, wait;  /* runs of this trial; runs until the next reading of the clock */
  uint64_t totals[TEAMS_RUNS];
  uint64_t all_ns, one_ns; /* time of runs with all threads, and with one; 0: not tried */
  uint64_t begun_ns;         /* start of this trial's first run */
  uint64_t spent_ns, due_ns; /* time of these trials; start of the next ones */
  uint32_t pause;            /* until then, times spent_ns */
} teams;

/* Start with all threads in every step. */
void teams_start(teams *made, teams_step *steps, uint32_t count, uint32_t all);
/* Begin a run; return nonzero if its steps must be recorded by teams_note and teams_end. now_ns: the clock, called only if needed. */
int teams_begin(teams *used, uint64_t (*now_ns)(void));
void teams_note(teams *used, uint32_t step, uint64_t ns);
/* End a recorded run. total_ns: of all steps. */
void teams_end(teams *used, uint64_t total_ns, uint64_t now_ns);

#endif
