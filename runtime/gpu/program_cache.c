#include "program_cache.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES ((uint64_t)256 << 20)
#define PATH 4096
#define BASIS 0xcbf29ce484222325u

/* The head of a file: its key, how long it is, and a checksum of the program behind it. */
typedef struct {
  char magic[8];
  uint64_t key, size, checksum;
} head;

static const char MAGIC[8] = {'t','v','m','f','l','o','w',1};

/* FNV-1a, which finds damage; the folder is not written to by others. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash;
}

static uint64_t hash_key(const program_key *key) { return hash_bytes(hash_bytes(BASIS, key->device, strlen(key->device) + 1), key->code, key->code_size); }

static int path_of(const program_key *key, const char *suffix, char *path) {
  if (!key->folder) return -1;
  int length = snprintf(path, PATH, "%s/%016llx.program%s", key->folder, (unsigned long long)hash_key(key), suffix);
  return length > 0 && length < PATH ? 0 : -1;
}

unsigned char *program_cache_read(const program_key *key, size_t *size) {
  char path[PATH];
  head found;
  unsigned char *program = NULL;
  if (path_of(key, "", path)) return NULL;
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  if (fread(&found, sizeof found, 1, file) == 1 && !memcmp(found.magic, MAGIC, sizeof MAGIC) && found.key == hash_key(key) && found.size &&
      found.size <= MOST_BYTES)
    program = malloc((size_t)found.size);
  if (program && (fread(program, (size_t)found.size, 1, file) != 1 || hash_bytes(BASIS, program, (size_t)found.size) != found.checksum)) {
    free(program);
    program = NULL;
  }
  fclose(file);
  if (program) *size = (size_t)found.size;
  return program;
}

void program_cache_write(const program_key *key, const void *program, size_t size) {
  char path[PATH], unfinished[PATH], suffix[32];
  head made = {.key = hash_key(key), .size = size, .checksum = hash_bytes(BASIS, program, size)};
  memcpy(made.magic, MAGIC, sizeof MAGIC);
  static atomic_uint count; /* threads may keep the same one */
  snprintf(suffix, sizeof suffix, ".%ld-%u", (long)getpid(), atomic_fetch_add(&count, 1));
  if (size > MOST_BYTES || path_of(key, "", path) || path_of(key, suffix, unfinished)) return;
  FILE *file = fopen(unfinished, "wb");
  if (!file) return;
  int written = fwrite(&made, sizeof made, 1, file) == 1 && fwrite(program, size, 1, file) == 1;
  if (fclose(file) || !written || rename(unfinished, path)) remove(unfinished);
}
