/* SHA-256 as FIPS 180-4 defines it, HMAC as RFC 2104 does. */
#include "sha256.h"

#include <string.h>

static const uint32_t ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void mix(uint32_t state[8], const unsigned char *block) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; ++i, block += 4) w[i] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
  for (int i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3) + (rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10);
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    uint32_t one = s[7] + (rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + ROUNDS[i] + w[i];
    uint32_t two = (rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += one;
    s[0] = one + two;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

void sha256_begin(sha256 *made) {
  *made = (sha256){{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, 0, {0}};
}

void sha256_add(sha256 *made, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  while (size) {
    size_t used = made->size % 64, part = 64 - used < size ? 64 - used : size;
    if (part == 64) {
      mix(made->state, at);
    } else {
      memcpy(made->block + used, at, part);
      if (used + part == 64) mix(made->state, made->block);
    }
    made->size += part;
    at += part;
    size -= part;
  }
}

void sha256_end(sha256 *made, unsigned char digest[SHA256_SIZE]) {
  const uint64_t bits = made->size * 8;
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = (unsigned char)(bits >> (56 - 8 * i));
  sha256_add(made, "\x80", 1);
  while (made->size % 64 != 56) sha256_add(made, "", 1);
  sha256_add(made, length, sizeof length);
  for (int i = 0; i < SHA256_SIZE; ++i) digest[i] = (unsigned char)(made->state[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size, unsigned char digest[SHA256_SIZE]) {
  unsigned char block[64] = {0}, padded[64];
  sha256 made;
  if (key_size > sizeof block) {
    sha256_begin(&made);
    sha256_add(&made, key, key_size);
    sha256_end(&made, block);
  } else if (key_size) {
    memcpy(block, key, key_size);
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 64; ++i) padded[i] = block[i] ^ (round ? 0x5c : 0x36);
    sha256_begin(&made);
    sha256_add(&made, padded, sizeof padded);
    if (round) sha256_add(&made, digest, SHA256_SIZE);
    else if (size) sha256_add(&made, bytes, size);
    sha256_end(&made, digest);
  }
}

int same_digest(const unsigned char *one, const unsigned char *two) {
  unsigned char difference = 0;
  for (int i = 0; i < SHA256_SIZE; ++i) difference |= one[i] ^ two[i];
  return !difference;
}
