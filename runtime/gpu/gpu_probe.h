/* Which GPUs this system can compute on, by trying: a line of JSON for each fact, as soon as it is known, so that a driver that crashes or hangs
 * takes nothing with it that was found before.
 *
 *     {"api":"opencl","library":"libOpenCL.so.1"}                or  "error":"why there is none"
 *     {"api":"opencl","device":0,"name":...,"vendor":...,...}
 *     {"api":"opencl","device":0,"clml":"1.0 2.0"}               more of a device, known later
 *     {"api":"opencl","device":0,"test":"buffer"}                before a self-test
 *     {"api":"opencl","device":0,"test":"buffer","result":"ok"}  behind it; or why it failed */
#ifndef TVMFLOW_GPU_PROBE_H
#define TVMFLOW_GPU_PROBE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* library: alone looked for where it is not NULL. */
void probe_opencl(FILE *out, const char *library);
void probe_vulkan(FILE *out, const char *library);

/* A string in JSON, "..." included; bytes that are no printable ASCII become spaces. */
void probe_string(FILE *out, const char *text);
/* The line before and behind a self-test. */
void probe_begin(FILE *out, const char *api, int device, const char *test);
void probe_end(FILE *out, const char *api, int device, const char *test, const char *result);

/* A whole number below 2048 as float16, in which it is exact. */
uint16_t probe_half(unsigned value);
/* Whether y[i] = 2 x[i] + 1 for x[i] = i mod 251; 0, or -1 with the first difference in `why`. */
int probe_compare(const float *y, int count, char *why, size_t size);
int probe_compare_half(const uint16_t *y, unsigned count, char *why, size_t size);

#endif
