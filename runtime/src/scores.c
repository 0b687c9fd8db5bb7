/* Class scores: conversion to floats and probabilities, top k. */
#include "scores.h"

#include <math.h>
#include <string.h>

#define MAX_ERROR_OF_SUM 1e-3 /* distance of a sum of probabilities from 1, for 16-bit outputs, too */

static float from_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static float from_float16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = (float)fraction / 16777216; /* a multiple of 2^-24 */
  return sign ? -small : small;
}

int scores_read(const tvmflow_tensor *tensor, const void *from, float *to, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) switch (tensor->dtype) {
      case TVMFLOW_FLOAT32: to[i] = ((const float *)from)[i]; break;
      case TVMFLOW_FLOAT16: to[i] = from_float16(((const uint16_t *)from)[i]); break;
      case TVMFLOW_BFLOAT16: to[i] = from_bits((uint32_t)((const uint16_t *)from)[i] << 16); break;
      default: return -1;
    }
  return 0;
}

void scores_to_probabilities(const float *scores, uint32_t count, const uint32_t *indices, uint32_t k, float *probabilities) {
  double least = scores[0], most = scores[0], sum = 0, powers = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (scores[i] < least) least = scores[i];
    if (scores[i] > most) most = scores[i];
    sum += scores[i];
  }
  for (uint32_t i = 0; i < count; ++i) powers += exp(scores[i] - most);
  const int are_already = least >= 0 && fabs(sum - 1) <= MAX_ERROR_OF_SUM;
  for (uint32_t i = 0; i < k; ++i) probabilities[i] = (float)(are_already ? scores[indices[i]] : exp(scores[indices[i]] - most) / powers);
}

tvmflow_status tvmflow_top_k(const float *scores, uint32_t count, uint32_t k, uint32_t *indices) {
  if (!scores || !indices || !k) return TVMFLOW_BAD_ARGUMENT;
  uint32_t found = 0, numbers = 0;
  for (uint32_t i = 0; i < count; ++i) numbers += scores[i] == scores[i];
  if (k > numbers) return TVMFLOW_BAD_ARGUMENT;
  for (uint32_t i = 0; i < count; ++i) {
    if (scores[i] != scores[i]) continue;
    uint32_t at = found < k ? found++ : k;
    while (at && scores[i] > scores[indices[at - 1]]) {
      if (at < k) indices[at] = indices[at - 1];
      --at;
    }
    if (at < k) indices[at] = i;
  }
  return TVMFLOW_OK;
}
