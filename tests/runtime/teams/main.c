/* Teams of kernels on a machine that is made up: what a kernel takes alone, and what a hand-over takes. */
#include "teams.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)
#define STEPS 4
#define SPIN_NS 80000u

static uint64_t clock_ns;
static uint64_t hand_over_ns;               /* of a team, times its threads */
static uint64_t alone_ns[STEPS];            /* of a step on one thread */
static uint64_t spinning_ns; /* how much longer one thread takes while others still spin */
static uint64_t last_team_ns; /* when more than one thread computed last */
static uint64_t between_ns; /* how much longer a team of some threads takes, neither one nor all */
static uint64_t moved_ns;                   /* where a step has another team than the one before it */
static unsigned disturbed;                  /* every how many runs takes ten times as long; 0: none */
static unsigned tries, runs;

static uint64_t now(void) { return clock_ns; }

static uint32_t team_of(const teams *used, uint32_t i, int trying) { return trying ? used->steps[i].tried : used->steps[i].chosen; }

static uint64_t time_of(const teams *used, uint32_t i, int trying) {
  const uint64_t team = team_of(used, i, trying), before = team_of(used, i ? i - 1 : i, trying);
  uint64_t took = alone_ns[i] / team + (team > 1 ? hand_over_ns * team : 0) + (team == before ? 0 : moved_ns) + (team > 1 && team < used->all ? between_ns : 0);
  if (team > 1) last_team_ns = clock_ns;
  else if (clock_ns - last_team_ns < SPIN_NS) took += spinning_ns;
  return disturbed && runs % disturbed == 0 ? 10 * took : took;
}

static void run(teams *used, int count) {
  for (int k = 0; k < count; ++k) {
    const int trying = teams_begin(used, now);
    uint64_t total = 0;
    ++runs;
    tries += (unsigned)trying;
    for (uint32_t i = 0; i < used->count; ++i) {
      const uint64_t ns = time_of(used, i, trying);
      total += ns;
      if (trying) teams_note(used, i, ns);
    }
    clock_ns += total;
    if (trying) teams_end(used, total, clock_ns);
  }
}

static void begin(teams *made, teams_step *steps, uint32_t all, uint64_t hand_over) {
  teams_start(made, steps, STEPS, all);
  made->spin_ns = SPIN_NS;
  hand_over_ns = hand_over;
  moved_ns = between_ns = spinning_ns = disturbed = tries = runs = 0;
  last_team_ns = clock_ns;
  for (int i = 0; i < STEPS; ++i) alone_ns[i] = 1000;
}

static int all_have(const teams *used, uint32_t team) {
  int same = used->largest == team;
  for (uint32_t i = 0; i < STEPS; ++i) same &= used->steps[i].chosen == team;
  return same;
}

int main(void) {
  teams used;
  teams_step steps[STEPS];

  begin(&used, steps, 1, 0); /* nothing to choose */
  run(&used, 10000);
  CHECK(!tries && all_have(&used, 1));

  begin(&used, steps, 2, 100); /* near: two threads take 700 of 1000 ns */
  CHECK(all_have(&used, 2));
  run(&used, 100);
  CHECK(tries >= 3 * TEAMS_RUNS && tries < 12 * TEAMS_RUNS && all_have(&used, 2));
  hand_over_ns = 1000; /* far: 2500 */
  run(&used, 200000);
  CHECK(all_have(&used, 1));
  hand_over_ns = 100;
  run(&used, 200000);
  CHECK(all_have(&used, 2) && tries < runs / 50);

  begin(&used, steps, 16, 20); /* 1000 / n + 20 n is least for 7 */
  run(&used, 100);
  CHECK(all_have(&used, 8));

  begin(&used, steps, 16, 100); /* 16 threads take 1660 of 1000 ns, and 8 even more */
  between_ns = 5000;
  run(&used, 100);
  CHECK(all_have(&used, 1));
  for (int i = 0; i < STEPS; ++i) alone_ns[i] = 40000; /* 16 threads take 4100 of 40000 ns */
  run(&used, 100000);
  CHECK(all_have(&used, 16) && tries < runs / 50);

  begin(&used, steps, 4, 300); /* a large kernel among small ones */
  alone_ns[2] = 100000;
  run(&used, 100);
  CHECK(used.largest == 4 && steps[0].chosen == 1 && steps[1].chosen == 1 && steps[2].chosen == 4 && steps[3].chosen == 1);

  begin(&used, steps, 4, 300); /* kernels that always have all threads */
  for (int i = 0; i < STEPS; ++i) alone_ns[i] = 4000000;
  run(&used, 10000);
  CHECK(all_have(&used, 4));

  begin(&used, steps, 2, 400); /* each kernel gains a little alone, and the network loses by what moves between caches */
  alone_ns[1] = alone_ns[3] = 1700;
  moved_ns = 500;
  run(&used, 100);
  CHECK(all_have(&used, 1));

  begin(&used, steps, 2, 500); /* the same, but all threads in every kernel gain */
  alone_ns[1] = alone_ns[3] = 20000;
  moved_ns = 1000;
  run(&used, 100);
  CHECK(all_have(&used, 2));

  begin(&used, steps, 2, 100); /* a machine on which others run decides the same */
  disturbed = 7;
  run(&used, 100);
  CHECK(all_have(&used, 2));
  begin(&used, steps, 2, 1000);
  disturbed = 7;
  run(&used, 100);
  CHECK(all_have(&used, 1));

  begin(&used, steps, 4, 260); /* four threads take 1290 of 1000 ns, and one takes 2000 while others spin on its core */
  spinning_ns = 1000;
  run(&used, 100);
  CHECK(all_have(&used, 1));

  begin(&used, steps, 2, 0); /* who decided in a bad moment decides again soon, where runs take long, too */
  for (int i = 0; i < STEPS; ++i) alone_ns[i] = 150000;
  run(&used, 5000);
  CHECK(all_have(&used, 2));
  hand_over_ns = 50000;
  while (!all_have(&used, 1)) run(&used, 1);
  hand_over_ns = 0;
  for (runs = 0; !all_have(&used, 2);) run(&used, 1);
  CHECK(runs < 400);

  begin(&used, steps, 16, 100); /* tries stay a small share of slow networks, too */
  for (int i = 0; i < STEPS; ++i) alone_ns[i] = 500000;
  run(&used, 20000);
  CHECK(tries && tries < 20000 / 50);
  return 0;
}
