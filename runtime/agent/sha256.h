/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104). */
#ifndef TVMFLOW_AGENT_SHA256_H
#define TVMFLOW_AGENT_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE 32

typedef struct {
  uint32_t state[8];
  uint64_t size; /* bytes so far */
  unsigned char block[64];
} sha256;

void sha256_begin(sha256 *made);
void sha256_add(sha256 *made, const void *bytes, size_t size);
void sha256_end(sha256 *made, unsigned char digest[SHA256_SIZE]);
void hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size, unsigned char digest[SHA256_SIZE]);
/* Return whether two digests are equal, in constant time. */
int same_digest(const unsigned char *one, const unsigned char *two);

#endif
