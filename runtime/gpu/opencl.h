/* Declarations of the OpenCL 1.2 functions that are used, loaded at run time: building needs no header, loader or driver.
 *
 * Names and numbers are those of the OpenCL specification. clSetKernelArg is the one call that no two threads may make for one kernel. */
#ifndef TVMFLOW_OPENCL_H
#define TVMFLOW_OPENCL_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bitfield;
typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;
typedef struct _cl_recording_qcom *cl_recording_qcom;

typedef struct {
  cl_uint order, type;
} cl_image_format;

typedef struct {
  cl_uint type;
  size_t width, height, depth, array_size, row_pitch, slice_pitch;
  cl_uint mip_levels, samples;
  cl_mem buffer;
} cl_image_desc;

enum {
  CL_SUCCESS = 0, CL_DEVICE_NOT_FOUND = -1, CL_MAP_FAILURE = -12,
  CL_PLATFORM_NAME = 0x0902,
  CL_DEVICE_TYPE = 0x1000, CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002, CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004, CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010, CL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011, CL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012, CL_DEVICE_IMAGE_SUPPORT = 0x1016,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F, CL_DEVICE_LOCAL_MEM_TYPE = 0x1022, CL_DEVICE_LOCAL_MEM_SIZE = 0x1023, CL_DEVICE_NAME = 0x102B, CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D, CL_DEVICE_VERSION = 0x102F, CL_DEVICE_EXTENSIONS = 0x1030, CL_DEVICE_PLATFORM = 0x1031, CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_IMAGE_MAX_ARRAY_SIZE = 0x1041,
  CL_DEVICE_TYPE_CPU = 2, CL_DEVICE_TYPE_GPU = 4,
  CL_MEM_READ_WRITE = 1, CL_MEM_ALLOC_HOST_PTR = 16, CL_MEM_COPY_HOST_PTR = 32, CL_MAP_READ = 1, CL_MAP_WRITE_INVALIDATE_REGION = 4,
  CL_RGBA = 0x10B5, CL_MEM_OBJECT_IMAGE2D = 0x10F1, CL_MEM_OBJECT_IMAGE2D_ARRAY = 0x10F3,
  CL_SIGNED_INT8 = 0x10D7, CL_SIGNED_INT32 = 0x10D9, CL_UNSIGNED_INT8 = 0x10DA, CL_HALF_FLOAT = 0x10DD, CL_FLOAT = 0x10DE,
  CL_QUEUE_PROFILING_ENABLE = 2, CL_QUEUE_RECORDABLE_QCOM = 0x40000000,
  CL_PROGRAM_BINARY_SIZES = 0x1165, CL_PROGRAM_BINARIES = 0x1166, CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_COMPLETE = 0, CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_PROFILING_COMMAND_START = 0x1282, CL_PROFILING_COMMAND_END = 0x1283
};
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu

#define OPENCL_FUNCTIONS(X)                                                                                                                         \
  X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                                                                               \
  X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *))                                                                 \
  X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id *, cl_uint *))                                                      \
  X(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                                                                     \
  X(cl_context, clCreateContext, (const intptr_t *, cl_uint, const cl_device_id *, void (*)(const char *, const void *, size_t, void *),            \
                                  void *, cl_int *))                                                                                                \
  X(cl_int, clReleaseContext, (cl_context))                                                                                                         \
  X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int *))                                                      \
  X(cl_int, clReleaseCommandQueue, (cl_command_queue))                                                                                              \
  X(cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void *, cl_int *))                                                                    \
  X(cl_mem, clCreateImage, (cl_context, cl_bitfield, const cl_image_format *, const cl_image_desc *, void *, cl_int *))                             \
  X(cl_int, clReleaseMemObject, (cl_mem))                                                                                                           \
  X(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *, cl_int *))                                          \
  X(cl_int, clBuildProgram, (cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *), void *))                        \
  X(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *))                                                   \
  X(cl_int, clReleaseProgram, (cl_program))                                                                                                         \
  X(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *))                                                                                \
  X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                                                                             \
  X(cl_int, clReleaseKernel, (cl_kernel))                                                                                                           \
  X(cl_int, clEnqueueNDRangeKernel, (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint,                 \
                                     const cl_event *, cl_event *))                                                                                 \
  X(cl_int, clEnqueueReadBuffer, (cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, cl_uint, const cl_event *, cl_event *))                \
  X(cl_int, clFinish, (cl_command_queue))                                                                                                           \
  X(cl_program, clCreateProgramWithBinary, (cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **, cl_int *, cl_int *)) \
  X(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *))                                                                      \
  X(cl_int, clGetKernelWorkGroupInfo, (cl_kernel, cl_device_id, cl_uint, size_t, void *, size_t *))                                                 \
  X(cl_int, clEnqueueWriteBuffer, (cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *, cl_uint, const cl_event *, cl_event *))         \
  X(cl_int, clEnqueueReadImage, (cl_command_queue, cl_mem, cl_uint, const size_t *, const size_t *, size_t, size_t, void *, cl_uint, const cl_event *, \
                                 cl_event *))                                                                                                       \
  X(cl_int, clEnqueueWriteImage, (cl_command_queue, cl_mem, cl_uint, const size_t *, const size_t *, size_t, size_t, const void *, cl_uint,         \
                                  const cl_event *, cl_event *))                                                                                    \
  X(cl_int, clEnqueueCopyBuffer, (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event *, cl_event *))                 \
  X(cl_int, clGetEventInfo, (cl_event, cl_uint, size_t, void *, size_t *))                                                                          \
  X(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void *, size_t *))                                                                 \
  X(void *, clEnqueueMapBuffer, (cl_command_queue, cl_mem, cl_uint, cl_bitfield, size_t, size_t, cl_uint, const cl_event *, cl_event *, cl_int *))    \
  X(cl_int, clEnqueueUnmapMemObject, (cl_command_queue, cl_mem, void *, cl_uint, const cl_event *, cl_event *))                                     \
  X(cl_int, clReleaseEvent, (cl_event))                                                                                                             \
  X(cl_int, clFlush, (cl_command_queue))

/* Of cl_qcom_recordable_queues, NULL where the library lacks them. The arguments that would change what was recorded are not used. */
#define OPENCL_RECORDING_FUNCTIONS(X)                                                                                                               \
  X(cl_recording_qcom, clNewRecordingQCOM, (cl_command_queue, cl_int *))                                                                            \
  X(cl_int, clEndRecordingQCOM, (cl_recording_qcom))                                                                                                \
  X(cl_int, clReleaseRecordingQCOM, (cl_recording_qcom))                                                                                            \
  X(cl_int, clEnqueueRecordingQCOM, (cl_command_queue, cl_recording_qcom, size_t, const void *, size_t, const void *, size_t, const void *, size_t, \
                                     const void *, cl_uint, const cl_event *, cl_event *))

typedef struct {
  void *library;
  char name[256]; /* that it was found under */
#define OPENCL_MEMBER(result, name, parameters) result(*name) parameters;
  OPENCL_FUNCTIONS(OPENCL_MEMBER)
  OPENCL_RECORDING_FUNCTIONS(OPENCL_MEMBER)
#undef OPENCL_MEMBER
} opencl;

/* Return a function of a loaded library that is not declared here, NULL for none. */
void *opencl_function(const opencl *loaded, const char *name);

/* Find a library of OpenCL; `named` alone where it is not NULL. Returns 0, or -1 with the reason in `why`. It stays loaded. */
int opencl_load(opencl *found, const char *named, char *why, size_t size);

#endif
