/* The state of a network on Vulkan, shared by three files: network_vulkan.c runs it, _memory.c and _programs.c create its parts. */
#ifndef TVMFLOW_VULKAN_STATE_H
#define TVMFLOW_VULKAN_STATE_H

#include "network_gpu.h"
#include "vulkan.h"

#define MOST_ARGUMENTS 32 /* of a kernel */
#ifndef GPU_TIMEOUT_NS
#define GPU_TIMEOUT_NS 20000000000u /* of one submission, and of a second chance to end before all is freed */
#endif

/* A buffer with memory of its own: bytes `begin` to `end` of arena, constants, inputs or outputs. mapped: where the CPU sees it, or NULL. */
typedef struct {
  VkHandle buffer, memory;
  uint64_t begin, end;
  unsigned char *mapped;
  int coherent;
} bank;

/* Banks of one place, in order of their offsets. */
typedef struct {
  bank *banks;
  uint32_t count;
} room;

/* What SPIR-V says of itself. Bit k of written: argument k is; of texels: it is read as a buffer of texels, of one value where single
 * has the bit too, else of four. needs: bits of NEEDS_. */
typedef struct {
  uint32_t written, texels, single, needs;
} program_facts;
#define SINGLE_TEXELS 64 /* added to the binding of a buffer of texels of one value */

/* How a program finds its arguments; programs with the same number of them, and the same of them texels, share it. */
typedef struct {
  uint32_t arguments, texels, single;
  VkHandle set, whole;
} program_layout;
enum { NEEDS_FLOAT16 = 1, NEEDS_INT8 = 2, NEEDS_INT16 = 4, NEEDS_INT64 = 8, NEEDS_STORAGE16 = 16, NEEDS_STORAGE8 = 32, NEEDS_DOT = 64, NEEDS_SUMS = 128, NEEDS_UNKNOWN = 256 };

/* What a run records into: argument ranges since the last barrier. */
typedef struct {
  uint32_t place, index;
  uint64_t begin, end;
  int written;
} touched;

struct gpu_part {
  vulkan api;
  VkPhysicalDevice physical;
  VkDevice device;
  VkQueue queue;
  uint32_t family, timestamp_bits, has; /* has: bits of NEEDS_ */
  VkPhysicalDeviceProperties is;
  VkPhysicalDeviceMemoryProperties memory;
  uint8_t driver_uuid[16];
  char driver[GPU_NAME]; /* what it calls itself */
  uint64_t largest_allocation;
  room rooms[PLAN_ARENA + 1]; /* by place; inputs and outputs have one bank */
  uint64_t *starts;           /* of inputs, then outputs, in their bank */
  program_layout *layouts; /* as many as there are kinds */
  uint32_t layout_count;
  uint32_t *layout_of;     /* one per step */
  VkHandle *views;         /* one per argument; 0 where it is no texels */
  VkHandle *pipelines, *sets; /* one per step; steps with the same code share a pipeline */
  program_facts *facts;       /* one per step */
  VkHandle cache, descriptors, command_pool, fence, queries;
  VkCommandBuffer commands, timed; /* timed: made when first asked for */
  touched *touched;
  uint32_t touched_count;
  char broken[GPU_REASON]; /* why it can run no more; "" */
  int hangs;               /* a submission may still be running */
  char *why;               /* of the call at hand */
};

/* Call a function of Vulkan and leave with -1 and the reason where it fails. */
#define TRY(call)                                                                                       \
  do {                                                                                                  \
    VkResult result_ = part->api.call;                                                                  \
    if (result_ != VK_SUCCESS) return vulkan_failed(part, #call, result_);                              \
  } while (0)

int vulkan_failed(gpu_part *part, const char *call, VkResult result);
/* Say why, as printf does; returns -1. */
__attribute__((format(printf, 2, 3))) int vulkan_refuse(gpu_part *part, const char *format, ...);
uint32_t vulkan_limit(const gpu_part *part, size_t offset);

/* -- network_vulkan_memory.c -- */

int vulkan_open_device(gpu_part *part, const tvmflow_gpu *wanted);
/* Memory for all values, with the constants in it. Needs the command pool. */
int vulkan_make_memory(gpu_part *part);
void vulkan_free_memory(gpu_part *part);
/* Bytes of a value. */
uint64_t vulkan_size_of(const plan_value *value);
/* The bank in which a value lies, and where in it. */
const bank *vulkan_bank_of(const gpu_part *part, const plan_value *value, uint64_t *offset);
/* Submit commands and wait for their end. */
int vulkan_submit(gpu_part *part, VkCommandBuffer commands);

/* -- network_vulkan_programs.c -- */

/* Layouts and pipelines of all steps, through the cache in `folder` unless that is NULL. */
int vulkan_make_programs(gpu_part *part, const char *folder);
void vulkan_free_programs(gpu_part *part);

#endif
