/* A process of its own for the probe: drivers crash. gpu-probe [--opencl LIBRARY] */
#include "probe.h"

#include <stdlib.h>
#include <string.h>

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

int main(int count, char **arguments) {
  const char *opencl = NULL;
  for (int i = 1; i + 1 < count; i += 2)
    if (!strcmp(arguments[i], "--opencl")) opencl = arguments[i + 1];
  probe_opencl(stdout, opencl);
  fflush(stdout);
  _Exit(0); /* drivers crash at exit too */
}
