/* Cache compiled programs in a folder of the app: a file is used only if it is complete and of the same source, device and driver. */
#ifndef TVMFLOW_PROGRAM_CACHE_H
#define TVMFLOW_PROGRAM_CACHE_H

#include <stddef.h>

/* folder: NULL for no cache; device: text that says for which device and driver; code: what is compiled. */
typedef struct {
  const char *folder, *device;
  const void *code;
  size_t code_size;
} program_key;

/* Return what was kept under a key, memory that the caller frees, or NULL. */
unsigned char *program_cache_read(const program_key *key, size_t *size);
/* Keep a compiled program. Nobody is told where that fails: the next start compiles again. */
void program_cache_write(const program_key *key, const void *program, size_t size);

#endif
