/* tvmflow-agent: run self-contained libraries on the device that this program was copied to, for hosts that know its secret.
 *
 *     tvmflow-agent --folder DIR [--secret-file FILE] [--listen ADDRESS] [--port N] [--storage-mb N] [--idle-s N] [--unit NAME] [--life-line]
 *
 * The secret is the first line of FILE, which only its owner may read, or of standard input. The first line of output is JSON and
 * says the port. NAME is what measurements call the device, where it has no number of its own. With --life-line the agent ends with its standard input. Needs libc, pthread and dl.
 */
#define _GNU_SOURCE
#include "session.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SESSIONS 32  /* at a time */
#define MAX_STRANGERS 16 /* of them without authentication; the next one ends the oldest of the peer that has most */
#define MIN_SECRET 16

typedef struct {
  const char *folder, *secret_file, *address, *root, *unit;
  long port, storage_mb, idle_s;
  int life_line;
} options;

/* process: 0 for none; peer: its address; since: which connection it is, by number. */
static struct {
  pid_t process;
  in_addr_t peer;
  unsigned long since;
} sessions[MAX_SESSIONS];
static volatile char *is_known; /* per session, set by its process: the host has proved to know the secret */

static _Noreturn void fail(const char *words, const char *name) {
  fprintf(stderr, "tvmflow-agent: %s%s%s\n", words, name ? ": " : "", name ? name : "");
  exit(1);
}

static long number_of(const char *name, const char *value, long low, long high) {
  char *end;
  errno = 0;
  long found = value ? strtol(value, &end, 10) : low - 1;
  if (!value || errno || *end || found < low || found > high) fail("a number within its bounds is needed", name);
  return found;
}

static options read_options(char **arguments) {
  options found = {.address = "127.0.0.1", .root = "", .storage_mb = 4096, .idle_s = 3600};
  for (char **at = arguments + 1; *at; ++at) {
    const char *name = *at;
    if (!strcmp(name, "--life-line")) {
      found.life_line = 1;
      continue;
    }
    const char *value = *++at;
    if (!value) fail("an option that there is, with its value", name);
    if (!strcmp(name, "--folder")) found.folder = value;
    else if (!strcmp(name, "--secret-file")) found.secret_file = value;
    else if (!strcmp(name, "--listen")) found.address = value;
    else if (!strcmp(name, "--system-root")) found.root = value;
    else if (!strcmp(name, "--unit")) found.unit = value;
    else if (!strcmp(name, "--port")) found.port = number_of(name, value, 0, 65535);
    else if (!strcmp(name, "--storage-mb")) found.storage_mb = number_of(name, value, 1, 1 << 20);
    else if (!strcmp(name, "--idle-s")) found.idle_s = number_of(name, value, 1, 1 << 20);
    else fail("no such option", name);
  }
  if (!found.folder) fail("--folder is needed", NULL);
  return found;
}

/* Read the secret: a line of 16 to 256 bytes, from a file that only its owner may read, or from standard input, byte by byte, since more may follow. */
static secret read_secret(const char *path) {
  secret found = {{0}, 0};
  struct stat status;
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : 0;
  if (file < 0) fail(strerror(errno), path);
  if (path && (fstat(file, &status) || status.st_uid != geteuid() || status.st_mode & 077)) fail("only its owner may read a secret (chmod 600)", path);
  char byte;
  while (read(file, &byte, 1) == 1 && byte != '\n') {
    if (found.size == MAX_SECRET) fail("a secret has at most 256 bytes", NULL);
    found.bytes[found.size++] = (unsigned char)byte;
  }
  if (path) close(file);
  if (found.size < MIN_SECRET) fail("a secret has at least 16 bytes", NULL);
  return found;
}

static int open_listener(const options *requested, int *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)requested->port)};
  socklen_t size = sizeof address;
  int yes = 1, made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (inet_pton(AF_INET, requested->address, &address.sin_addr) != 1) fail("an IPv4 address is needed", requested->address);
  if (made < 0) fail(strerror(errno), "socket");
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(made, (struct sockaddr *)&address, size) || listen(made, MAX_SESSIONS)) fail(strerror(errno), "the port");
  if (getsockname(made, (struct sockaddr *)&address, &size)) fail(strerror(errno), "the port");
  *port = ntohs(address.sin_port);
  return made;
}

static void reap(void) {
  for (pid_t ended; (ended = waitpid(-1, NULL, WNOHANG)) > 0;)
    for (int at = 0; at < MAX_SESSIONS; ++at)
      if (sessions[at].process == ended) sessions[at].process = 0;
}

static int is_stranger(int at) { return sessions[at].process && !is_known[at]; }

/* Return how many strangers a peer has. */
static int strangers_of(in_addr_t peer) {
  int count = 0;
  for (int at = 0; at < MAX_SESSIONS; ++at) count += is_stranger(at) && sessions[at].peer == peer;
  return count;
}

/* End the oldest stranger of the peer that has most. */
static void end_a_stranger(void) {
  int chosen = -1, most = 0;
  for (int at = 0; at < MAX_SESSIONS; ++at) {
    if (!is_stranger(at)) continue;
    const int count = strangers_of(sessions[at].peer);
    if (count > most || (count == most && sessions[at].since < sessions[chosen].since)) chosen = at, most = count;
  }
  if (chosen < 0) return;
  kill(sessions[chosen].process, SIGKILL);
  while (waitpid(sessions[chosen].process, NULL, 0) < 0 && errno == EINTR) {}
  sessions[chosen].process = 0;
}

/* Return a free place for a session, -1 if hosts that know the secret have all of them. */
static int free_place(void) {
  int strangers = 0, sessions_now = 0, place = -1;
  for (int at = 0; at < MAX_SESSIONS; ++at) strangers += is_stranger(at), sessions_now += sessions[at].process != 0;
  if (strangers >= MAX_STRANGERS || (sessions_now == MAX_SESSIONS && strangers)) end_a_stranger();
  for (int at = 0; at < MAX_SESSIONS; ++at)
    if (!sessions[at].process) place = at;
  return place;
}

static void begin_session(int listener, session_rules *rules) {
  static unsigned long connections;
  struct sockaddr_in peer = {0};
  socklen_t size = sizeof peer;
  int yes = 1, connection = accept4(listener, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC);
  if (connection < 0) return;
  const int place = free_place();
  const pid_t agent = getpid();
  if (place >= 0) is_known[place] = 0;
  pid_t process = place >= 0 ? fork() : -1;
  if (process > 0) {
    sessions[place].process = process;
    sessions[place].peer = peer.sin_addr.s_addr;
    sessions[place].since = ++connections;
  }
  if (process) {
    close(connection);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != agent) _exit(0);
  close(listener);
  int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere >= 0) dup2(nowhere, 0), dup2(nowhere, 1);
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  if (!session_hello(connection, connection, &rules->shared)) {
    is_known[place] = 1;
    session_serve(connection, connection, rules);
  }
  _exit(0);
}

/* Return whether standard input has ended; other input is discarded. */
static int is_parent_gone(void) {
  char scrap[256];
  ssize_t count = read(0, scrap, sizeof scrap);
  return count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
}

int main(int count, char **arguments) {
  (void)count;
  options requested = read_options(arguments);
  static session_rules rules;
  int port;
  signal(SIGPIPE, SIG_IGN);
  umask(077);
  rules.shared = read_secret(requested.secret_file);
  rules.root = requested.root;
  rules.unit = requested.unit;
  rules.idle_ms = (int)(requested.idle_s > 2000000 ? 2000000000 : requested.idle_s * 1000);
  if (store_open(&rules.files, requested.folder, (uint64_t)requested.storage_mb << 20)) fail(strerror(errno), requested.folder);
  is_known = mmap(NULL, MAX_SESSIONS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (is_known == MAP_FAILED) fail(strerror(errno), "memory");
  int listener = open_listener(&requested, &port);
  rules.listener = -1; /* a session has closed it */
  printf("{\"port\":%d,\"version\":%d,\"pid\":%d}\n", port, AGENT_VERSION, (int)getpid());
  fflush(stdout);
  for (;;) {
    struct pollfd waiting[2] = {{listener, POLLIN, 0}, {requested.life_line ? 0 : -1, POLLIN, 0}};
    int found = poll(waiting, 2, 500);
    reap();
    if (found > 0 && waiting[1].revents && is_parent_gone()) break;
    if (found > 0 && waiting[0].revents) begin_session(listener, &rules);
  }
  for (int at = 0; at < MAX_SESSIONS; ++at)
    if (sessions[at].process) kill(sessions[at].process, SIGKILL);
  return 0;
}
