/* Files named by digest in one folder of bounded size; all names are generated, so that nothing is written elsewhere. */
#ifndef TVMFLOW_AGENT_STORE_H
#define TVMFLOW_AGENT_STORE_H

#include "sha256.h"

#include <stdint.h>

#define STORE_PATH (4096 + 80)
#define DIGEST_TEXT (2 * SHA256_SIZE) /* letters of a digest */

typedef struct {
  int folder;      /* a file descriptor */
  char path[4096]; /* absolute */
  uint64_t limit;  /* bytes of all files together */
} store;

typedef enum { STORE_OK, STORE_FULL, STORE_TOO_LARGE, STORE_WRONG_DIGEST, STORE_FAILED } store_status;

/* An upload in progress. */
typedef struct {
  int file;
  char name[DIGEST_TEXT + 1];
  uint64_t size, done;
  sha256 sum;
} upload;

/* Open a folder, created if missing; return 0, or -1 with errno. */
int store_open(store *made, const char *folder, uint64_t limit);
/* Return whether a text is a digest: 64 digits of 0-9a-f. */
int is_digest(const char *text);
/* Return the bytes of a complete file, -1 if it is missing. Mark it as used now. */
int64_t store_find(const store *in, const char *digest);
/* Return the path of a file for dlopen, NULL if it is missing. */
const char *store_path(const store *in, const char *digest, char path[STORE_PATH]);
/* Begin or continue an upload, of which begun->done bytes are stored. The least recently used files are removed if space is short. */
store_status upload_begin(store *in, const char *digest, uint64_t size, upload *begun);
/* Write the next bytes. A failure ends the upload; written bytes are kept for the next one, unless the disk is full. */
store_status upload_add(store *in, upload *begun, const void *bytes, uint64_t size);
/* Complete the file if its digest is correct. */
store_status upload_end(store *in, upload *begun);
void upload_stop(upload *begun);

#endif
