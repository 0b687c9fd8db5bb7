/* Serve a host's requests: store files, and forward requests for a library to its process. */
#define _GNU_SOURCE
#include "session.h"

#include "gpu_probe.h"
#include "process_state.h"
#include "probe.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORKERS 8
#define LONGEST_MS 3600000u /* of one request */
#define USUAL_MS 60000u
#define MOST_LIMITS 10u /* times the limit of a request that it may take where others have the processors */
#define BUSY_MS 5000u   /* after which the host is told that a request goes on */

typedef struct {
  pid_t process; /* 0: none */
  int socket;
} worker;

static struct {
  int in, out;
  session_rules *rules;
  int lock; /* of the folder; -1 if the device is not locked */
  worker workers[MAX_WORKERS];
  unsigned char bytes[MAX_DATA];
} own;

/* -- authentication -- */

static int random_bytes(unsigned char *bytes, size_t size) {
  int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  ssize_t count = file >= 0 ? read(file, bytes, size) : -1;
  if (file >= 0) close(file);
  return count == (ssize_t)size ? 0 : -1;
}

static void prove(const secret *shared, const char *side, const unsigned char *host, const unsigned char *agent, unsigned char proof[SHA256_SIZE]) {
  unsigned char said[8 + 2 * NONCE_SIZE] = {0};
  memcpy(said, side, strlen(side));
  memcpy(said + 8, host, NONCE_SIZE);
  memcpy(said + 8 + NONCE_SIZE, agent, NONCE_SIZE);
  hmac_sha256(shared->bytes, shared->size, said, sizeof said, proof);
}

int session_hello(int in, int out, const secret *shared) {
  struct {
    char magic[MAGIC_SIZE];
    unsigned char version[4], nonce[NONCE_SIZE];
  } host, agent = {AGENT_MAGIC, {AGENT_VERSION, 0, 0, 0}, {0}};
  unsigned char claimed[SHA256_SIZE], proof[SHA256_SIZE];
  text reply = {0};
  const uint64_t end_ms = now_ms() + HELLO_MS;
  if (random_bytes(agent.nonce, sizeof agent.nonce)) return -1;
  if (wire_read_until(in, &host, sizeof host, end_ms) || memcmp(host.magic, agent.magic, MAGIC_SIZE)) return -1;
  if (wire_write(out, &agent, sizeof agent)) return -1;
  if (memcmp(host.version, agent.version, sizeof host.version)) return -1; /* the host has verified our proof */
  if (wire_read_until(in, claimed, sizeof claimed, end_ms)) return -1;
  prove(shared, "host", host.nonce, agent.nonce, proof);
  int is_right = same_digest(claimed, proof);
  if (is_right) {
    prove(shared, "agent", host.nonce, agent.nonce, proof);
    say(&reply, "ok", NULL);
    text_add(&reply, ",\"proof\":\"");
    for (int i = 0; i < SHA256_SIZE; ++i) text_add(&reply, "%02x", proof[i]);
    text_add(&reply, "\"}");
  } else {
    usleep(500000); /* delay guesses */
    say(&reply, "denied", "the secret is another");
    text_add(&reply, "}");
  }
  int failed = frame_write(out, FRAME_REPLY, 0, reply.at, reply.used);
  text_free(&reply);
  return is_right && !failed ? 0 : -1;
}

/* -- replies -- */

static int send_reply(uint8_t number, text *reply) {
  text_add(reply, "}");
  if (reply->cut) {
    text_free(reply);
    say(reply, "refused", "the reply is too long");
    text_add(reply, "}");
  }
  int failed = frame_write(own.out, FRAME_REPLY, number, reply->at, reply->used);
  text_free(reply);
  return failed;
}

static int reply_status(const char *status, const char *words) {
  text reply = {0};
  say(&reply, status, words);
  return send_reply(0, &reply);
}

static int host_is_gone(int wait_ms) {
  struct pollfd waiting = {own.in, POLLRDHUP, 0};
  return poll(&waiting, 1, wait_ms) > 0 && waiting.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* -- the device and its files -- */

static int lock_device(const request *asked) {
  uint64_t wait_ms;
  if (request_number(asked, "wait_ms", 0, LONGEST_MS, 0, &wait_ms)) return reply_status("bad_request", "wait_ms");
  if (own.lock >= 0) return reply_status("ok", NULL);
  int lock = openat(own.rules->files.folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (lock < 0) return reply_status(errno == ENOSPC ? "full" : "failed", strerror(errno));
  for (uint64_t end = now_ms() + wait_ms; flock(lock, LOCK_EX | LOCK_NB);) {
    if (now_ms() < end && !host_is_gone(100)) continue;
    close(lock);
    return reply_status("busy", "another host has the device");
  }
  own.lock = lock;
  return reply_status("ok", NULL);
}

static int reply_stored(store_status status) {
  switch (status) {
    case STORE_OK: return reply_status("ok", NULL);
    case STORE_FULL: return reply_status("full", "no space is left on the device");
    case STORE_TOO_LARGE: return reply_status("too_large", "the file is larger than all that the agent may store");
    case STORE_WRONG_DIGEST: return reply_status("digest", "what arrived has another digest than was said");
    default: return reply_status("failed", errno ? strerror(errno) : "the file cannot be written");
  }
}

/* Reply the number of stored bytes, receive the rest, reply again. */
static int upload_file(const request *asked) {
  uint64_t size;
  upload begun;
  const char *digest = request_value(asked, "sha256");
  if (!is_digest(digest) || request_number(asked, "size", 0, MAX_FILE, MAX_FILE + 1, &size) || size > MAX_FILE)
    return reply_status("bad_request", "sha256 or size");
  text reply = {0};
  if (store_find(&own.rules->files, digest) == (int64_t)size) {
    say(&reply, "ok", NULL);
    text_add(&reply, ",\"offset\":%llu,\"known\":true", (unsigned long long)size);
    return send_reply(0, &reply);
  }
  store_status status = upload_begin(&own.rules->files, digest, size, &begun);
  if (status) return reply_stored(status);
  say(&reply, "ok", NULL);
  text_add(&reply, ",\"offset\":%llu,\"known\":false", (unsigned long long)begun.done);
  int failed = send_reply(0, &reply);
  uint64_t left = size - begun.done; /* read to the end, so that the next request follows */
  while (!failed && left) {
    frame_head head;
    failed = frame_read_head(own.in, &head, STALLED_MS) || head.kind != FRAME_DATA || !head.size || head.size > left ||
             wire_read(own.in, own.bytes, head.size, STALLED_MS);
    if (failed) break;
    if (!status) status = upload_add(&own.rules->files, &begun, own.bytes, head.size);
    left -= head.size;
  }
  if (failed) return upload_stop(&begun), -1; /* the next upload of the file continues here */
  return reply_stored(status ? status : upload_end(&own.rules->files, &begun));
}

/* Return whether any host has locked the device. */
static int is_device_locked(void) {
  if (own.lock >= 0) return 1;
  int lock = openat(own.rules->files.folder, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  int taken = lock >= 0 && flock(lock, LOCK_SH | LOCK_NB);
  if (lock >= 0) close(lock);
  return taken;
}

/* Fork a process that inherits nothing of this session: return 0 in it, -1 on failure. It ends with the session. */
static pid_t fork_detached(void) {
  const struct rlimit no_core = {0, 0};
  pid_t session = getpid(), process = fork();
  if (process) return process;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != session) _exit(0);
  memset(&own.rules->shared, 0, sizeof own.rules->shared);
  setrlimit(RLIMIT_CORE, &no_core);
  int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC); /* discard what a library prints */
  for (int standard = 0; nowhere >= 0 && standard < 3; ++standard) dup2(nowhere, standard);
  signal(SIGPIPE, SIG_DFL);
  close(own.lock);
  close(own.in);
  if (own.out != own.in) close(own.out);
  if (own.rules->listener >= 0) close(own.rules->listener);
  for (worker *other = own.workers; other < own.workers + MAX_WORKERS; ++other)
    if (other->process) close(other->socket);
  return 0;
}

static int report(const char *name) {
  text reply = {0};
  say(&reply, "ok", NULL);
  if (strcmp(name, "temperature")) text_add(&reply, ",\"taken\":%s", is_device_locked() ? "true" : "false");
  if (!strcmp(name, "probe")) probe(&reply, own.rules->root, own.rules->unit, &own.rules->files);
  if (!strcmp(name, "temperature")) probe_temperatures(&reply, own.rules->root);
  return send_reply(0, &reply);
}

/* -- GPUs -- */

/* Probe GPUs in a separate process, since drivers may crash or hang; its output until then is the reply. */
static int report_gpus(uint64_t limit_ms) {
  int pipes[2], how = 0, late = 0;
  text reply = {0};
  if (pipe2(pipes, O_CLOEXEC)) return reply_status("failed", strerror(errno));
  pid_t process = fork_detached();
  if (process < 0) return close(pipes[0]), close(pipes[1]), reply_status("failed", strerror(errno));
  if (!process) {
    FILE *out = fdopen(pipes[1], "w");
    if (out) probe_opencl(out, NULL), probe_vulkan(out, NULL), fflush(out);
    _Exit(0); /* drivers may crash at exit, too */
  }
  close(pipes[1]);
  size_t used = 0, begin = 0;
  say(&reply, "ok", NULL);
  text_add(&reply, ",\"gpus\":[");
  for (const uint64_t end = now_ms() + limit_ms; used < sizeof own.bytes;) {
    const uint64_t now = now_ms();
    struct pollfd waiting = {pipes[0], POLLIN, 0};
    const int found = now < end ? poll(&waiting, 1, (int)(end - now)) : 0;
    if (found < 0 && errno == EINTR) continue;
    const ssize_t count = found > 0 ? read(pipes[0], own.bytes + used, sizeof own.bytes - used) : 0;
    late = !found;
    if (count <= 0) break;
    used += (size_t)count;
  }
  if (late || used == sizeof own.bytes) kill(process, SIGKILL);
  while (waitpid(process, &how, 0) < 0 && errno == EINTR) {}
  close(pipes[0]);
  for (size_t at = 0; at < used; ++at) { /* complete lines, each a JSON object */
    if (own.bytes[at] != '\n') continue;
    if (begin) text_add(&reply, ",");
    for (; begin < at; ++begin) text_add(&reply, "%c", own.bytes[begin]);
    begin = at + 1;
  }
  text_add(&reply, "],\"late\":%s,\"signal\":%d", late ? "true" : "false", WIFSIGNALED(how) ? WTERMSIG(how) : 0);
  return send_reply(0, &reply);
}

/* -- libraries -- */

static void end_worker(worker *ended) {
  if (!ended->process) return;
  kill(ended->process, SIGKILL);
  while (waitpid(ended->process, NULL, 0) < 0 && errno == EINTR) {}
  close(ended->socket);
  *ended = (worker){0, -1};
}

/* Describe how a library's process ended. */
static int report_end(uint8_t number, worker *ended) {
  int how = 0;
  text reply = {0};
  while (waitpid(ended->process, &how, 0) < 0 && errno == EINTR) {}
  close(ended->socket);
  *ended = (worker){0, -1};
  int with = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
  say(&reply, "crashed",
      with == SIGILL                       ? "the library uses instructions that this processor lacks"
      : with == SIGKILL                    ? "the system killed it, as it does where memory ends"
      : with == SIGSEGV || with == SIGBUS  ? "it read or wrote memory that is not its own"
      : with                               ? "a signal ended it"
                                           : "it ended by itself");
  text_add(&reply, ",\"signal\":%d,\"exit\":%d", with, WIFEXITED(how) ? WEXITSTATUS(how) : 0);
  return send_reply(number, &reply);
}

static int begin_worker(worker *begun) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return -1;
  pid_t process = fork_detached();
  if (process < 0) {
    close(pair[0]);
    close(pair[1]);
    return -1;
  }
  if (!process) {
    close(pair[0]);
    worker_serve(pair[1], &own.rules->files);
  }
  close(pair[1]);
  *begun = (worker){process, pair[0]};
  return 0;
}

/* Forward a frame from the host to a process, or from a process to the host. */
static int forward_frame(int from, int to, uint8_t number, frame_kind only, frame_head *head) {
  wire_status status = frame_read_head(from, head, STALLED_MS);
  if (!status && only && head->kind != only) status = WIRE_BAD;
  if (!status) status = wire_read(from, own.bytes, head->size, STALLED_MS);
  return status ? (int)status : frame_write(to, (frame_kind)head->kind, number, own.bytes, head->size) ? 1 : 0;
}

/* When a process that began a request has had its time. What it waited for a processor that others had is not its own: a limit would depend on the load
 * of the machine. No process waits longer than MOST_LIMITS limits, however many threads it has. */
static uint64_t end_of(const worker *with, uint64_t begin_ms, uint64_t limit_ms, double waited_before_s) {
  const double waited_ms = (waited_for_processor(with->process) - waited_before_s) * 1e3, most_ms = (double)limit_ms * (MOST_LIMITS - 1);
  return begin_ms + limit_ms + (uint64_t)(waited_ms > most_ms ? most_ms : waited_ms > 0 ? waited_ms : 0);
}

/* Forward frames until the library's process replies, ends, or exceeds the limit; return -1 if the host is gone. The host is told that it goes on. */
static int relay_replies(uint8_t number, worker *with, uint64_t limit_ms) {
  const double waited_s = waited_for_processor(with->process);
  const uint64_t begin = now_ms();
  for (uint64_t end = begin + limit_ms;;) {
    uint64_t now = now_ms();
    if (now >= end) end = end_of(with, begin, limit_ms, waited_s);
    struct pollfd waiting[2] = {{with->socket, POLLIN, 0}, {own.in, POLLIN | POLLRDHUP, 0}};
    int found = now < end ? poll(waiting, 2, (int)(end - now < BUSY_MS ? end - now : BUSY_MS)) : 0;
    frame_head head;
    if (found < 0 && errno == EINTR) continue;
    if (!found && now < end) {
      if (frame_write(own.out, FRAME_BUSY, number, NULL, 0)) return -1;
      continue;
    }
    if (found <= 0) {
      char words[80];
      end_worker(with);
      snprintf(words, sizeof words, "no reply within %llu ms", (unsigned long long)limit_ms);
      return reply_status("timed_out", words);
    }
    if (waiting[0].revents) {
      int status = forward_frame(with->socket, own.out, number, 0, &head);
      if (status > 0) return -1;
      if (status == WIRE_END) return report_end(number, with);
      if (status) return end_worker(with), reply_status("crashed", "its process said what is no reply");
      if (head.kind == FRAME_REPLY) return 0;
    } else if (waiting[1].revents & POLLIN) {
      int status = forward_frame(own.in, with->socket, 0, FRAME_DATA, &head);
      if (status < 0) return -1;
      if (status > 0) return report_end(number, with);
    } else {
      return -1;
    }
  }
}

static int open_worker(const request *asked, const void *bytes, size_t size, uint64_t limit_ms) {
  uint8_t number = 1;
  while (number <= MAX_WORKERS && own.workers[number - 1].process) ++number;
  if (number > MAX_WORKERS) return reply_status("bad_request", "so many libraries are open that one has to be closed first");
  if (!is_digest(request_value(asked, "sha256"))) return reply_status("bad_request", "sha256");
  worker *begun = &own.workers[number - 1];
  if (begin_worker(begun)) return reply_status("failed", strerror(errno));
  if (frame_write(begun->socket, FRAME_REQUEST, 0, bytes, size)) return report_end(number, begun);
  return relay_replies(number, begun, limit_ms);
}

static int ask_worker(uint8_t number, const request *asked, const void *bytes, size_t size, uint64_t limit_ms) {
  worker *with = number <= MAX_WORKERS ? &own.workers[number - 1] : NULL;
  if (!with || !with->process) return reply_status("bad_request", "no such library is open");
  if (!strcmp(asked->name, "close")) return end_worker(with), reply_status("ok", NULL);
  if (frame_write(with->socket, FRAME_REQUEST, 0, bytes, size)) return report_end(number, with);
  return relay_replies(number, with, limit_ms);
}

static int handle_request(const frame_head *head, const unsigned char *bytes) {
  static request asked;
  uint64_t limit_ms;
  if (request_parse(&asked, bytes, head->size)) return reply_status("bad_request", "no request");
  if (request_number(&asked, "within_ms", 1, LONGEST_MS, USUAL_MS, &limit_ms)) return reply_status("bad_request", "within_ms");
  if (!strcmp(asked.name, "probe") || !strcmp(asked.name, "temperature") || !strcmp(asked.name, "taken")) return report(asked.name);
  if (!strcmp(asked.name, "take")) return lock_device(&asked);
  if (own.lock < 0) return reply_status("not_taken", "the device has to be taken first");
  if (head->worker) return ask_worker(head->worker, &asked, bytes, head->size, limit_ms);
  if (!strcmp(asked.name, "gpus")) return report_gpus(limit_ms);
  if (!strcmp(asked.name, "upload")) return upload_file(&asked);
  if (!strcmp(asked.name, "open")) return open_worker(&asked, bytes, head->size, limit_ms);
  return reply_status("bad_request", "no such request");
}

void session_serve(int in, int out, session_rules *rules) {
  own.in = in;
  own.out = out;
  own.rules = rules;
  own.lock = -1;
  for (;;) {
    static unsigned char bytes[MAX_REQUEST];
    frame_head head;
    if (frame_read_head(in, &head, rules->idle_ms)) break;
    if (head.kind == FRAME_DATA) { /* was sent before the library's process refused it */
      if (wire_read(in, own.bytes, head.size, STALLED_MS)) break;
    } else if (head.kind != FRAME_REQUEST || wire_read(in, bytes, head.size, STALLED_MS) || handle_request(&head, bytes)) {
      break;
    }
  }
  for (worker *left = own.workers; left < own.workers + MAX_WORKERS; ++left) end_worker(left);
  if (own.lock >= 0) close(own.lock);
}
