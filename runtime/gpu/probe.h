/* Which GPUs this system can compute on, by trying: a line of JSON for each fact, as soon as it is known, so that a driver that crashes or hangs
 * takes nothing with it that was found before.
 *
 *     {"api":"opencl","library":"libOpenCL.so.1"}                or  "error":"why there is none"
 *     {"api":"opencl","device":0,"name":...,"vendor":...,...}
 *     {"api":"opencl","device":0,"test":"buffer"}                before a self-test
 *     {"api":"opencl","device":0,"test":"buffer","result":"ok"}  behind it; or why it failed */
#ifndef TVMFLOW_GPU_PROBE_H
#define TVMFLOW_GPU_PROBE_H

#include <stdint.h>
#include <stdio.h>

/* library: alone looked for where it is not NULL. */
void probe_opencl(FILE *out, const char *library);

/* A string in JSON, "..." included; bytes that are no printable ASCII become spaces. */
void probe_string(FILE *out, const char *text);
/* The line before and behind a self-test. */
void probe_begin(FILE *out, const char *api, int device, const char *test);
void probe_end(FILE *out, const char *api, int device, const char *test, const char *result);

#endif
