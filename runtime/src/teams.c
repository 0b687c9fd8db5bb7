#include "teams.h"

#define FIRST_WAIT 3u            /* runs before the first trial, which map pages and fill caches */
#define WAIT 64u                 /* runs between readings of the clock */
#define LEAST_PAUSE_NS 100000000u /* between trials */
#define FIRST_PAUSE 4u           /* pause after a change, times the duration of the trials; doubled each time that they change nothing */
#define LAST_PAUSE 64u
#define ALWAYS_NS 200000u        /* kernels that take longer with all threads keep all threads */
#define SHORT_NS 100000u         /* in shorter runs hand-overs are a large part: */
#define SHORT_GAIN 8u            /* more threads must gain an eighth, since a briefly preempted thread costs as much, */
#define GAIN 32u                 /* and a thirty-second in longer ones */
#define MIXED UINT32_MAX
#define ONE_THREAD (UINT32_MAX - 1) /* one thread in every step, regardless of single steps */
#define WHOLE_NS 1000000u /* networks that take longer with all threads are not tried with one */

static uint64_t median(const uint64_t *totals) {
  for (int i = 0; i < TEAMS_RUNS; ++i) {
    int below = 0, equal = 0;
    for (int k = 0; k < TEAMS_RUNS; ++k) below += totals[k] < totals[i], equal += totals[k] == totals[i];
    if (below <= TEAMS_RUNS / 2 && below + equal > TEAMS_RUNS / 2) return totals[i];
  }
  return totals[0];
}

/* Use this team in the next runs for every open step, and the best one in others. Return the number of open steps. */
static uint32_t try_team(teams *used, uint32_t team) {
  uint32_t count = 0;
  used->tried = team;
  used->run = 0;
  used->begun_ns = 0;
  for (uint32_t i = 0; i < used->count; ++i) {
    teams_step *step = &used->steps[i];
    const int is_tried = team == ONE_THREAD || (team != MIXED && step->is_open);
    step->tried = team == ONE_THREAD ? 1 : is_tried ? (uint8_t)team : step->best;
    step->ns = UINT32_MAX;
    count += (uint32_t)is_tried;
  }
  return count;
}

static void begin_tries(teams *used) {
  for (uint32_t i = 0; i < used->count; ++i) used->steps[i].is_open = 1, used->steps[i].best_ns = UINT32_MAX;
  used->one_ns = used->spent_ns = 0;
  try_team(used, used->all);
}

void teams_start(teams *made, teams_step *steps, uint32_t count, uint32_t all) {
  *made = (teams){.steps = steps, .count = count, .all = all, .largest = all, .wait = FIRST_WAIT, .pause = FIRST_PAUSE / 2};
  for (uint32_t i = 0; i < count; ++i) steps[i] = (teams_step){.tried = (uint8_t)all, .best = (uint8_t)all, .chosen = (uint8_t)all};
}

int teams_begin(teams *used, uint64_t (*now_ns)(void)) {
  if (used->tried) return 1;
  if (used->all == 1 || used->wait--) return 0;
  used->wait = WAIT;
  if (now_ns() < used->due_ns) return 0;
  begin_tries(used);
  return 1;
}

void teams_note(teams *used, uint32_t step, uint64_t ns) {
  if (ns < used->steps[step].ns) used->steps[step].ns = (uint32_t)ns;
}

/* Keep this trial's team in steps where it is the fastest so far; close steps in which it was much slower. */
static void update_best(teams *used) {
  for (uint32_t i = 0; i < used->count; ++i) {
    teams_step *step = &used->steps[i];
    if (!step->is_open) continue;
    if (used->tried == used->all) step->all_ns = step->ns;
    step->is_open = step->ns < ALWAYS_NS && step->ns / 5 <= step->best_ns / 4;
    if (step->ns > step->best_ns) continue;
    step->best = step->tried;
    step->best_ns = step->ns;
  }
}

/* Try the best teams together; small gains of a step are ignored, since reading data of another team costs as much. */
static void try_best(teams *used) {
  for (uint32_t i = 0; i < used->count; ++i) {
    teams_step *step = &used->steps[i];
    if (step->best_ns > step->all_ns - step->all_ns / 8) step->best = (uint8_t)used->all;
  }
  try_team(used, MIXED);
}

/* Choose between one thread, all threads and the best teams by the time of whole runs, which includes cache misses between cores. */
static void choose(teams *used, uint64_t mixed_ns) {
  const uint64_t least = mixed_ns < used->all_ns ? mixed_ns : used->all_ns;
  const int is_one = used->one_ns && used->one_ns - used->one_ns / (used->one_ns < SHORT_NS ? SHORT_GAIN : GAIN) <= least, is_all = used->all_ns <= mixed_ns + mixed_ns / 100;
  used->largest = 1;
  for (uint32_t i = 0; i < used->count; ++i) {
    teams_step *step = &used->steps[i];
    step->chosen = is_one ? 1 : is_all ? (uint8_t)used->all : step->best;
    if (step->chosen > used->largest) used->largest = step->chosen;
  }
}

static void end_tries(teams *used, uint64_t now_ns) {
  const uint32_t largest = used->largest;
  choose(used, median(used->totals));
  const int is_changed = (largest == 1) != (used->largest == 1);
  used->pause = is_changed ? FIRST_PAUSE : used->pause < LAST_PAUSE ? 2 * used->pause : LAST_PAUSE;
  const uint64_t pause = used->pause * used->spent_ns;
  used->tried = 0;
  used->due_ns = now_ns + (pause > LEAST_PAUSE_NS ? pause : LEAST_PAUSE_NS);
}

void teams_end(teams *used, uint64_t total_ns, uint64_t now_ns) {
  used->spent_ns += total_ns;
  if (!used->begun_ns) used->begun_ns = now_ns - total_ns;
  /* Spinning threads may share a core with this one; in steady state with one thread they would be asleep. */
  const int is_one = used->tried == 1 || used->tried == ONE_THREAD;
  if (is_one && now_ns - used->begun_ns < used->spin_ns + used->spin_ns / 2) return;
  used->totals[used->run++] = total_ns;
  const int is_hopeless = used->tried == ONE_THREAD && total_ns > 2 * used->all_ns;
  if (used->run < TEAMS_RUNS && !is_hopeless) return;
  if (used->tried == MIXED) {
    end_tries(used, now_ns);
    return;
  }
  const uint32_t team = used->tried;
  if (team == ONE_THREAD) {
    used->one_ns = is_hopeless ? total_ns : median(used->totals);
    try_best(used);
    return;
  }
  uint32_t alone = 0;
  for (uint32_t i = 0; i < used->count; ++i) alone += used->steps[i].tried == 1;
  if (team == used->all) used->all_ns = median(used->totals);
  if (alone == used->count) used->one_ns = median(used->totals);
  update_best(used);
  if (team > 1 && try_team(used, team / 2)) return;
  /* Steps whose half team was slower were not tried with one thread, but the whole network may be faster with it. */
  if (!used->one_ns && used->all_ns < WHOLE_NS) try_team(used, ONE_THREAD);
  else try_best(used);
}
