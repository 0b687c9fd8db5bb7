/* PoCL behind a driver that fails as FAULTY_DRIVER says: "r5 c7 h9" refuses the fifth program that is compiled, crashes at the seventh and hangs at the ninth.
 *
 * Programs are counted over all processes, in the file FAULTY_COUNT. */
#include "opencl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef cl_program (*create_type)(cl_context, cl_uint, const char **, const size_t *, cl_int *);
typedef cl_int (*build_type)(cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *), void *);
static char fault; /* of the program that was created last */

static void *real(const char *name) { return dlsym(dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL), name); }

static cl_program create(cl_context context, cl_uint n, const char **texts, const size_t *sizes, cl_int *error) {
  create_type theirs;
  *(void **)&theirs = real("clCreateProgramWithSource");
  int file = open(getenv("FAULTY_COUNT"), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(file, ".", 1) != 1) abort();
  long number = lseek(file, 0, SEEK_CUR);
  close(file);
  for (const char *at = getenv("FAULTY_DRIVER"); *at; ++at)
    if (strchr("rch", *at) && atol(at + 1) == number) fault = *at;
  return theirs(context, n, texts, sizes, error);
}

static cl_int build(cl_program program, cl_uint n, const cl_device_id *devices, const char *options, void (*done)(cl_program, void *), void *data) {
  build_type theirs;
  *(void **)&theirs = real("clBuildProgram");
  if (fault == 'r') return -5; /* CL_OUT_OF_RESOURCES */
  if (fault == 'c') abort();
  while (fault == 'h') pause();
  return theirs(program, n, devices, options, done, data);
}

void *loadOpenCLPointer(const char *name) {
  if (!strcmp(name, "clCreateProgramWithSource")) return (void *)create;
  return !strcmp(name, "clBuildProgram") ? (void *)build : real(name);
}
