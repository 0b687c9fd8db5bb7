/* Coverage-guided fuzzing of what the agent reads: frames, requests, the files of a library's reply. gcc tells which edges ran.
 *
 *     fuzz_agent FOLDER SECONDS SEED     ends with 0 if nothing happened but replies; sanitizers end it otherwise
 *
 * The first byte of an input says whether the host said its name already.
 */
#define _GNU_SOURCE
#include "session.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EDGES 65536
#define MOST 4096 /* bytes of an input: less than a pipe holds */
#define CORPUS 2048

static unsigned char seen[EDGES], now[EDGES];

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) {
  uintptr_t place = (uintptr_t)__builtin_return_address(0);
  now[(place ^ place >> 16) % EDGES] = 1;
}

typedef struct {
  unsigned char bytes[MOST];
  size_t size;
} input;

static input corpus[CORPUS];
static size_t known;

static void add(const void *bytes, size_t size) {
  if (known == CORPUS || size > MOST) return;
  memcpy(corpus[known].bytes, bytes, size);
  corpus[known++].size = size;
}

static void add_requests(const char *const *requests, size_t count) {
  input made = {{1}, 1};
  for (size_t i = 0; i < count; ++i) {
    size_t size = strlen(requests[i]);
    unsigned char head[HEAD_SIZE] = {FRAME_REQUEST, 0, 0, 0, (unsigned char)size, (unsigned char)(size >> 8), 0, 0};
    memcpy(made.bytes + made.size, head, sizeof head);
    memcpy(made.bytes + made.size + sizeof head, requests[i], size);
    made.size += sizeof head + size;
    if (!strncmp(requests[i], "upload", 6)) {
      const unsigned char data[HEAD_SIZE + 5] = {FRAME_DATA, 0, 0, 0, 5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'};
      memcpy(made.bytes + made.size, data, sizeof data);
      made.size += sizeof data;
    }
    add(made.bytes, made.size);
  }
}

static void mutate(input *made) {
  static const char *const WORDS[] = {"take", "upload", "open", "probe", "temperature", "taken", "sha256=", "size=", "within_ms=", "close", "input", "=", " ", "99999999999999999999", "-1"};
  for (int changes = 1 + rand() % 4; changes; --changes) {
    size_t at = made->size ? (size_t)rand() % made->size : 0;
    const input *other = &corpus[(size_t)rand() % known];
    const char *word = WORDS[(size_t)rand() % (sizeof WORDS / sizeof *WORDS)];
    size_t length = strlen(word), rest = made->size - at;
    switch (rand() % 6) {
      case 0: if (made->size) made->bytes[at] ^= (unsigned char)(1 << rand() % 8); break;
      case 1: if (made->size) made->bytes[at] = (unsigned char)rand(); break;
      case 2: made->size = at; break;
      case 3: if (at + length <= MOST) memcpy(made->bytes + at, word, length), made->size = at + length > made->size ? at + length : made->size; break;
      case 4: if (made->size < MOST && made->size) memmove(made->bytes + at + 1, made->bytes + at, rest), ++made->size; break;
      default:
        if (other->size > 1 && made->size + other->size <= MOST) memcpy(made->bytes + made->size, other->bytes + 1, other->size - 1), made->size += other->size - 1;
    }
  }
}

static void execute(const input *given, session_rules *rules) {
  int way[2], nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (!given->size || pipe(way) || write(way[1], given->bytes + 1, given->size - 1) != (ssize_t)given->size - 1) exit(2);
  close(way[1]);
  if (given->bytes[0] & 1) session_serve(way[0], nowhere, rules);
  else session_hello(way[0], nowhere, &rules->shared);
  close(way[0]);
  close(nowhere);
}

int main(int count, char **arguments) {
  static const char *const REQUESTS[] = {
      "probe", "temperature", "taken", "take wait_ms=0", "upload sha256=2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 size=5",
      "upload sha256=0000000000000000000000000000000000000000000000000000000000000000 size=5 within_ms=5",
      "open sha256=2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 threads=2 mask=3", "close"};
  static session_rules rules = {.root = "/nowhere", .idle_ms = 1000, .listener = -1, .shared = {"0123456789abcdef", 16}};
  if (count != 4 || store_open(&rules.files, arguments[1], 1 << 20)) return 2;
  srand((unsigned)atoi(arguments[3]));
  add_requests(REQUESTS, sizeof REQUESTS / sizeof *REQUESTS);
  const unsigned char hello[1 + 52 + 32] = {0, 't', 'v', 'm', 'f', 'l', 'o', 'w', ' ', 'a', 'g', 'e', 'n', 't', '\n', 0, 0, AGENT_VERSION};
  add(hello, sizeof hello);
  add(hello, 30);
  unsigned long runs = 0, edges = 0;
  for (time_t end = time(NULL) + atoi(arguments[2]); time(NULL) < end; ++runs) {
    input given = corpus[runs < known ? runs : (size_t)rand() % known];
    if (runs >= known) mutate(&given);
    if (!(given.bytes[0] & 1) && given.size > 80) given.size = 80; /* a wrong secret waits */
    if (!given.size) continue;
    memset(now, 0, sizeof now);
    execute(&given, &rules);
    int is_new = 0;
    for (size_t i = 0; i < EDGES; ++i)
      if (now[i] && !seen[i]) seen[i] = 1, is_new = 1, ++edges;
    if (is_new) add(given.bytes, given.size);
  }
  printf("%lu runs, %lu edges, %zu inputs\n", runs, edges, known);
  return 0;
}
