/* Probe the GPUs of this system: a JSON line for each fact as soon as it is known, so that a crashing or hanging driver
 * loses nothing that was found before.
 *
 *     {"api":"opencl","library":"libOpenCL.so.1"}                or  "error":"reason"
 *     {"api":"opencl","device":0,"name":...,"vendor":...,...}
 *     {"api":"opencl","device":0,"clml":"1.0 2.0"}               further facts of a device
 *     {"api":"opencl","device":0,"test":"buffer"}                before a self-test
 *     {"api":"opencl","device":0,"test":"buffer","result":"ok"}  behind it; or the reason of its failure */
#ifndef TVMFLOW_GPU_PROBE_H
#define TVMFLOW_GPU_PROBE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* library: the only one to try, if it is not NULL. */
void probe_opencl(FILE *out, const char *library);
void probe_vulkan(FILE *out, const char *library);

/* Write a quoted JSON string; bytes other than printable ASCII become spaces. */
void probe_string(FILE *out, const char *text);
/* Write the line before and behind a self-test. */
void probe_begin(FILE *out, const char *api, int device, const char *test);
void probe_end(FILE *out, const char *api, int device, const char *test, const char *result);

/* Return an integer below 2048 as float16, in which it is exact. */
uint16_t probe_half(unsigned value);
/* Check y[i] = 2 x[i] + 1 for x[i] = i mod 251; return 0, or -1 with the first difference in `why`. */
int probe_compare(const float *y, int count, char *why, size_t size);
int probe_compare_half(const uint16_t *y, unsigned count, char *why, size_t size);

#endif
