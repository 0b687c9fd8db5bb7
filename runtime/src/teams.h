/* How many threads compute each kernel of a plan, its team: found by trying.
 *
 * What it takes to hand a loop to other threads is 0.1 to 50 us, by which cores they run on, whether others use these, and whether the threads sleep; it
 * changes from one minute to the next. So a few runs try teams: all threads, then half as many, down to one. Each kernel keeps the team that was
 * clearly the fastest, unless the network is as fast with all threads in every kernel, or with one. This is repeated after a while, in a small share of all runs.
 */
#ifndef TVMFLOW_TEAMS_H
#define TVMFLOW_TEAMS_H

#include <stdint.h>

#define TEAMS_RUNS 5 /* of each try: what disturbs one or two of them decides nothing */

typedef struct {
  uint32_t ns, best_ns, all_ns; /* the shortest of this try, of the best team's, and with all threads */
  uint8_t tried, best, chosen; /* teams: of this try, the fastest so far, between tries */
  uint8_t is_open; /* smaller teams are tried */
} teams_step;

typedef struct {
  teams_step *steps;
  uint32_t count, all; /* steps, threads */
  uint64_t spin_ns;    /* how long a thread without work spins before it sleeps: set by the caller, 0 at first */
  uint32_t largest;    /* of the teams that are chosen */
  uint32_t tried;      /* the team of this try; 0 between tries */
  uint32_t run, wait;  /* of this try; until the clock is looked at */
  uint64_t totals[TEAMS_RUNS];
  uint64_t all_ns, one_ns; /* of runs with all threads, and with one; 0: not tried */
  uint64_t begun_ns;         /* when the first run of this try began */
  uint64_t spent_ns, due_ns; /* by these tries; of the next ones */
  uint32_t pause;            /* until these, times spent_ns */
} teams;

/* Begin with all threads in every step. */
void teams_start(teams *made, teams_step *steps, uint32_t count, uint32_t all);
/* Before a run: nonzero where its steps are to be noted and teams_end called. now_ns: what the clock says is asked for only if need be. */
int teams_begin(teams *used, uint64_t (*now_ns)(void));
void teams_note(teams *used, uint32_t step, uint64_t ns);
/* After a run that was noted. total_ns: of all steps. */
void teams_end(teams *used, uint64_t total_ns, uint64_t now_ns);

#endif
