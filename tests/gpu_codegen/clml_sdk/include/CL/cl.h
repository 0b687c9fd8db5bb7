/* What a stand-in for Qualcomm's SDK needs of OpenCL's header; numbers are those of the OpenCL specification. */
#ifndef OPENCL_CL_H
#define OPENCL_CL_H
#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint32_t cl_bool;
typedef float cl_float;
typedef uint64_t cl_bitfield;
typedef cl_uint cl_channel_type;
typedef cl_bitfield cl_mem_flags;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_event *cl_event;

#define CL_SUCCESS 0
#define CL_INVALID_VALUE -30
#define CL_INVALID_OPERATION -59
#define CL_MEM_READ_WRITE (1 << 0)
#define CL_HALF_FLOAT 0x10DD
#define CL_FLOAT 0x10DE

extern cl_mem clCreateBuffer(cl_context, cl_mem_flags, size_t, void *, cl_int *);
extern cl_int clReleaseMemObject(cl_mem);
extern cl_int clReleaseEvent(cl_event);
extern cl_int clFinish(cl_command_queue);
#endif
