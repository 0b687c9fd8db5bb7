/* Files by their digest, in one folder, of bounded size together; the names are ours, so nothing is written elsewhere. */
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

/* An upload that goes on. */
typedef struct {
  int file;
  char name[DIGEST_TEXT + 1];
  uint64_t size, done;
  sha256 sum;
} upload;

/* Open a folder, made where there is none; 0, or -1 and errno. */
int store_open(store *made, const char *folder, uint64_t limit);
/* Whether a text is a digest: 64 digits of 0-9a-f. */
int is_digest(const char *text);
/* Bytes of a file that is there, whole; -1 where it is not. It counts as used now. */
int64_t store_find(const store *in, const char *digest);
/* The path of a file for dlopen; NULL where it is not there. */
const char *store_path(const store *in, const char *digest, char path[STORE_PATH]);
/* Begin or go on: begun->done bytes are there already. What was used longest ago goes where there is no room. */
store_status upload_begin(store *in, const char *digest, uint64_t size, upload *begun);
/* The next bytes. After a failure the upload is over; what was written stays for the next, unless the disk is full. */
store_status upload_add(store *in, upload *begun, const void *bytes, uint64_t size);
/* The file counts from here on, if its digest is right. */
store_status upload_end(store *in, upload *begun);
void upload_stop(upload *begun);

#endif
