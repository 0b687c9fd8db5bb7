/* PoCL behind a driver that records kernels as cl_qcom_recordable_queues says. RECORDING_FAULT: 'n' makes no recording, 'e' does not end it, 'q' refuses to
 * launch it. What is launched is counted in the file RECORDING_COUNT, a letter each: R for a recording, K for a kernel. */
#include "opencl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 256
typedef struct {
  cl_kernel kernel;
  size_t global[3], local[3];
} launch;
static launch recorded[MOST];
static cl_uint count;
static int is_open;
static const cl_command_queue RECORDER = (cl_command_queue)(intptr_t)1;
static const cl_recording_qcom RECORDING = (cl_recording_qcom)(intptr_t)2;

static void *real(const char *name) { return dlsym(dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL), name); }

static int fails(char how) { return getenv("RECORDING_FAULT") && strchr(getenv("RECORDING_FAULT"), how); }

static void note(char what) {
  int file = open(getenv("RECORDING_COUNT"), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(file, &what, 1) != 1) abort();
  close(file);
}

static cl_int info(cl_device_id device, cl_uint what, size_t size, void *to, size_t *n) {
  cl_int (*theirs)(cl_device_id, cl_uint, size_t, void *, size_t *);
  *(void **)&theirs = real("clGetDeviceInfo");
  const cl_int error = theirs(device, what, size, to, n);
  if (!error && what == CL_DEVICE_EXTENSIONS && to) strncat(to, " cl_qcom_recordable_queues", size - strlen(to) - 1);
  return error;
}

static cl_command_queue make_queue(cl_context context, cl_device_id device, cl_bitfield how, cl_int *error) {
  cl_command_queue (*theirs)(cl_context, cl_device_id, cl_bitfield, cl_int *);
  *(void **)&theirs = real("clCreateCommandQueue");
  return how == CL_QUEUE_RECORDABLE_QCOM ? (*error = 0, RECORDER) : theirs(context, device, how, error);
}

static cl_int free_queue(cl_command_queue queue) {
  cl_int (*theirs)(cl_command_queue);
  *(void **)&theirs = real("clReleaseCommandQueue");
  return queue == RECORDER ? 0 : theirs(queue);
}

static cl_int launch_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint axes, const size_t *offset, const size_t *global, const size_t *local, cl_uint n,
                            const cl_event *waits, cl_event *event) {
  cl_int (*theirs)(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, const cl_event *, cl_event *);
  *(void **)&theirs = real("clEnqueueNDRangeKernel");
  if (queue != RECORDER) {
    note('K');
    return theirs(queue, kernel, axes, offset, global, local, n, waits, event);
  }
  if (!is_open || axes != 3 || offset || n || event || count == MOST) return -30;
  launch *made = &recorded[count++];
  made->kernel = kernel;
  memcpy(made->global, global, sizeof made->global);
  memcpy(made->local, local, sizeof made->local);
  return 0;
}

static cl_recording_qcom begin(cl_command_queue queue, cl_int *error) {
  if (queue != RECORDER || fails('n')) return *error = -36, NULL;
  count = 0, is_open = 1;
  return *error = 0, RECORDING;
}

static cl_int end(cl_recording_qcom recording) { return recording != RECORDING || fails('e') ? -30 : (is_open = 0); }

static cl_int forget(cl_recording_qcom recording) { return recording == RECORDING ? (is_open = 0) : -30; }

static cl_int launch_all(cl_command_queue queue, cl_recording_qcom recording, size_t a, const void *b, size_t c, const void *d, size_t e, const void *f, size_t g,
                         const void *h, cl_uint n, const cl_event *waits, cl_event *event) {
  cl_int (*theirs)(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, const cl_event *, cl_event *);
  *(void **)&theirs = real("clEnqueueNDRangeKernel");
  if (queue == RECORDER || recording != RECORDING || is_open || a || b || c || d || e || f || g || h || fails('q')) return -30;
  note('R');
  for (cl_uint i = 0; i < count; ++i) {
    const cl_int error = theirs(queue, recorded[i].kernel, 3, NULL, recorded[i].global, recorded[i].local, n, waits, i + 1 == count ? event : NULL);
    if (error) return error;
  }
  return 0;
}

#define OWN(name, function) \
  if (!strcmp(asked, name)) return (void *)function
void *loadOpenCLPointer(const char *asked) {
  OWN("clGetDeviceInfo", info);
  OWN("clCreateCommandQueue", make_queue);
  OWN("clReleaseCommandQueue", free_queue);
  OWN("clEnqueueNDRangeKernel", launch_kernel);
  OWN("clNewRecordingQCOM", begin);
  OWN("clEndRecordingQCOM", end);
  OWN("clReleaseRecordingQCOM", forget);
  OWN("clEnqueueRecordingQCOM", launch_all);
  return real(asked);
}
