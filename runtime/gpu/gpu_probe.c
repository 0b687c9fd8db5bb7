#include "gpu_probe.h"

void probe_string(FILE *out, const char *text) {
  putc('"', out);
  for (; *text; ++text) {
    if (*text == '"' || *text == '\\') putc('\\', out);
    putc(*text < ' ' || *text > '~' ? ' ' : *text, out);
  }
  putc('"', out);
}

void probe_begin(FILE *out, const char *api, int device, const char *test) {
  fprintf(out, "{\"api\":\"%s\",\"device\":%d,\"test\":\"%s\"}\n", api, device, test);
  fflush(out);
}

void probe_end(FILE *out, const char *api, int device, const char *test, const char *result) {
  fprintf(out, "{\"api\":\"%s\",\"device\":%d,\"test\":\"%s\",\"result\":", api, device, test);
  probe_string(out, result);
  fprintf(out, "}\n");
  fflush(out);
}

uint16_t probe_half(unsigned value) {
  unsigned exponent = 0;
  if (!value) return 0;
  while (value >> (exponent + 1)) ++exponent;
  return (uint16_t)((exponent + 15) << 10 | ((value << (10 - exponent)) & 1023));
}

int probe_compare(const float *y, int count, char *why, size_t size) {
  for (int i = 0; i < count; ++i)
    if (y[i] != (float)(i % 251) * 2 + 1) {
      snprintf(why, size, "value %d is %g and not %d", i, (double)y[i], i % 251 * 2 + 1);
      return -1;
    }
  return 0;
}

int probe_compare_half(const uint16_t *y, unsigned count, char *why, size_t size) {
  for (unsigned i = 0; i < count; ++i)
    if (y[i] != probe_half(i % 251 * 2 + 1)) {
      snprintf(why, size, "value %u has the bits %04x and not %04x", i, y[i], probe_half(i % 251 * 2 + 1));
      return -1;
    }
  return 0;
}
