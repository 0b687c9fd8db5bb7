#define _GNU_SOURCE
#include "process_state.h"

#include "machine_state.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { TEXT = 1024, PATH = 96, LIMIT_US = 20000 /* of the look at one CPU, where others keep it busy */ };
enum { WAITED = 1 };                                 /* of schedstat */
enum { USER_TICKS = 11, SYSTEM_TICKS = 12, LAST_CPU = 36 }; /* of stat, behind the name */

typedef struct {
  long long ticks; /* that it has used */
  int cpu;         /* its last */
} thread;

/* busiest: those that used most, first. allowed: CPUs that any of the threads may use. */
typedef struct {
  thread busiest[MACHINE_STATE_CPUS];
  unsigned count, wanted;
  cpu_set_t allowed;
} threads_seen;

/* Read a file's beginning as text; 0 where there is nothing. */
static size_t read_text(const char *path, char text[TEXT]) {
  FILE *file = fopen(path, "re");
  const size_t size = file ? fread(text, 1, TEXT - 1, file) : 0;
  if (file) fclose(file);
  text[size] = 0;
  return size;
}

/* The number that a word is, counted from 0, of words with one space between; -1 where there is none. */
static long long number_at(const char *words, int at) {
  for (; at; --at) {
    words += strcspn(words, " ");
    if (!*words) return -1;
    ++words;
  }
  if (*words < '0' || *words > '9') return -1;
  long long found = 0;
  for (; *words >= '0' && *words <= '9'; ++words) found = 10 * found + (*words - '0');
  return found;
}

/* Threads come and go meanwhile: what is not there any more counts for nothing. */
static void add_waited(const char *folder, int id, double *waited_s) {
  char path[PATH], text[TEXT];
  snprintf(path, sizeof path, "%s/%d/schedstat", folder, id);
  const long long nanoseconds = read_text(path, text) ? number_at(text, WAITED) : -1;
  if (nanoseconds >= 0) *waited_s = (*waited_s < 0 ? 0 : *waited_s) + (double)nanoseconds / 1e9;
}

static void add_busiest(threads_seen *seen, thread found) {
  unsigned at = seen->count < seen->wanted ? seen->count++ : seen->wanted;
  for (; at && seen->busiest[at - 1].ticks < found.ticks; --at)
    if (at < seen->wanted) seen->busiest[at] = seen->busiest[at - 1];
  if (at < seen->wanted) seen->busiest[at] = found;
}

static void add_thread(int id, threads_seen *seen) {
  char path[PATH], text[TEXT];
  cpu_set_t allowed;
  if (!sched_getaffinity(id, sizeof allowed, &allowed))
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &seen->allowed);
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
  const char *name_end = read_text(path, text) ? strrchr(text, ')') : NULL; /* a name may hold anything */
  if (!name_end || name_end[1] != ' ') return;
  const long long user = number_at(name_end + 2, USER_TICKS), system = number_at(name_end + 2, SYSTEM_TICKS), cpu = number_at(name_end + 2, LAST_CPU);
  if (user >= 0 && system >= 0 && cpu >= 0 && cpu < CPU_SETSIZE) add_busiest(seen, (thread){user + system, (int)cpu});
}

/* Read what each thread in a folder of /proc tells; seen: of those of this process to look at, NULL where nobody looks. */
static void read_threads(const char *path, double *waited_s, threads_seen *seen) {
  DIR *folder = opendir(path);
  if (!folder) return;
  for (const struct dirent *entry; (entry = readdir(folder));) {
    const int id = (int)number_at(entry->d_name, 0);
    if (id < 0) continue;
    add_waited(path, id, waited_s);
    if (seen) add_thread(id, seen);
  }
  closedir(folder);
}

double waited_for_processor(int process) {
  char path[PATH / 2];
  double waited_s = -1;
  snprintf(path, sizeof path, "/proc/%d/task", process);
  read_threads(path, &waited_s, NULL);
  return waited_s;
}

static void read_usage(process_state *found) {
  struct rusage used;
  if (getrusage(RUSAGE_SELF, &used)) return;
  found->own_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  found->switches = (double)used.ru_nivcsw;
}

/* Android lets few read this. */
static void read_machine(process_state *found) {
  long long user, nice, system, idle, waits, interrupts, soft, stolen;
  const long ticks = sysconf(_SC_CLK_TCK);
  FILE *file = fopen("/proc/stat", "re");
  if (!file) return;
  if (ticks > 0 && fscanf(file, "cpu %lld %lld %lld %lld %lld %lld %lld %lld%*[^\n]", &user, &nice, &system, &idle, &waits, &interrupts, &soft, &stolen) == 8) {
    int cpu, processors = 0;
    while (fscanf(file, " cpu%d%*[^\n]", &cpu) == 1) ++processors;
    found->busy_s = (double)(user + nice + system + interrupts + soft + stolen) / (double)ticks;
    if (processors) found->processors = processors;
  }
  fclose(file);
}

/* List the CPUs to look at, in their order. */
static int list_cpus(const threads_seen *seen, int cpus[MACHINE_STATE_CPUS]) {
  cpu_set_t chosen = seen->allowed;
  int count = 0;
  if (CPU_COUNT(&chosen) > (int)seen->wanted) {
    CPU_ZERO(&chosen);
    for (unsigned i = 0; i < seen->count; ++i) CPU_SET(seen->busiest[i].cpu, &chosen);
  }
  for (int cpu = 0; cpu < CPU_SETSIZE && count < MACHINE_STATE_CPUS; ++cpu)
    if (CPU_ISSET(cpu, &chosen)) cpus[count++] = cpu;
  return count;
}

static double lowest_khz(const int *cpus, int count) {
  double lowest = -1;
  for (int i = 0; i < count; ++i) {
    char path[PATH], text[TEXT];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpus[i]);
    const double khz = read_text(path, text) ? (double)number_at(text, 0) : -1;
    if (khz >= 0 && (lowest < 0 || khz < lowest)) lowest = khz;
  }
  return lowest;
}

static void measure_machine(const threads_seen *seen, process_state *found) {
  int cpus[MACHINE_STATE_CPUS];
  double loops[MACHINE_STATE_CPUS], round_trips[MACHINE_STATE_CPUS];
  const int count = list_cpus(seen, cpus);
  found->khz = lowest_khz(cpus, count); /* the look itself may raise it */
  machine_state(cpus, count, LIMIT_US, loops, round_trips);
  for (int i = 0; i < count; ++i) {
    if (loops[i] > found->loop_ns) found->loop_ns = loops[i];
    if (i && round_trips[i] > found->round_trip_ns) found->round_trip_ns = round_trips[i];
  }
}

void read_process_state(unsigned threads, int look, process_state *found) {
  struct timespec now;
  threads_seen seen = {.wanted = threads < MACHINE_STATE_CPUS ? threads : MACHINE_STATE_CPUS};
  *found = (process_state){-1, -1, -1, -1, -1, -1, -1, -1, -1};
  CPU_ZERO(&seen.allowed);
  if (!clock_gettime(CLOCK_MONOTONIC, &now)) found->wall_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  read_usage(found);
  read_machine(found);
  read_threads("/proc/self/task", &found->waited_s, look ? &seen : NULL);
  if (look) measure_machine(&seen, found);
}
