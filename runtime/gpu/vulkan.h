/* Declarations of the Vulkan 1.1 functions that are used, loaded at run time: building needs no header, loader or driver.
 *
 * Names, numbers and layouts are those of the Vulkan specification; what is not looked at is left out or is padding. */
#ifndef TVMFLOW_VULKAN_H
#define TVMFLOW_VULKAN_H

#include <stddef.h>
#include <stdint.h>

typedef struct VkInstance_T *VkInstance;
typedef struct VkPhysicalDevice_T *VkPhysicalDevice;
typedef struct VkDevice_T *VkDevice;
typedef struct VkQueue_T *VkQueue;
typedef struct VkCommandBuffer_T *VkCommandBuffer;
typedef uint64_t VkHandle; /* all other handles */
typedef int32_t VkResult;

enum {
  VK_SUCCESS = 0, VK_TIMEOUT = 2,
  VK_QUEUE_COMPUTE_BIT = 2, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT = 0x20, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER = 7, VK_DESCRIPTOR_TYPE_TEXEL_BUFFER = 4, VK_BUFFER_USAGE_TEXEL_BUFFER = 4, VK_SHADER_STAGE_COMPUTE_BIT = 0x20,
  VK_PIPELINE_BIND_POINT_COMPUTE = 1, VK_MEMORY_HOST_VISIBLE_AND_COHERENT = 6,
  VK_APPLICATION_INFO = 0, VK_INSTANCE_CREATE_INFO = 1, VK_DEVICE_QUEUE_CREATE_INFO = 2, VK_DEVICE_CREATE_INFO = 3, VK_SUBMIT_INFO = 4,
  VK_MEMORY_ALLOCATE_INFO = 5, VK_BUFFER_CREATE_INFO = 12, VK_SHADER_MODULE_CREATE_INFO = 16, VK_PIPELINE_SHADER_STAGE_CREATE_INFO = 18,
  VK_COMPUTE_PIPELINE_CREATE_INFO = 29, VK_PIPELINE_LAYOUT_CREATE_INFO = 30, VK_DESCRIPTOR_SET_LAYOUT_CREATE_INFO = 32, VK_DESCRIPTOR_POOL_CREATE_INFO = 33,
  VK_DESCRIPTOR_SET_ALLOCATE_INFO = 34, VK_WRITE_DESCRIPTOR_SET = 35, VK_COMMAND_POOL_CREATE_INFO = 39, VK_COMMAND_BUFFER_ALLOCATE_INFO = 40,
  VK_COMMAND_BUFFER_BEGIN_INFO = 42, VK_FENCE_CREATE_INFO = 8, VK_BUFFER_VIEW_CREATE_INFO = 13,
  VK_FORMAT_R8_UINT = 13, VK_FORMAT_R8_SINT = 14, VK_FORMAT_R16_SFLOAT = 76, VK_FORMAT_R32_SINT = 99, VK_FORMAT_R32_SFLOAT = 100,
  VK_FORMAT_R8G8B8A8_UINT = 41, VK_FORMAT_R8G8B8A8_SINT = 42, VK_FORMAT_R16G16B16A16_SFLOAT = 97, VK_FORMAT_R32G32B32A32_SINT = 108, VK_FORMAT_R32G32B32A32_SFLOAT = 109,
  VK_ERROR_DEVICE_LOST = -4, VK_DEVICE_TYPE_INTEGRATED = 1, VK_DEVICE_TYPE_DISCRETE = 2, VK_DEVICE_TYPE_CPU = 4,
  VK_MEMORY_DEVICE_LOCAL = 1, VK_MEMORY_HOST_VISIBLE = 2, VK_MEMORY_HOST_COHERENT = 4, VK_MEMORY_HOST_CACHED = 8, VK_BUFFER_USAGE_TRANSFER = 3,
  VK_STAGE_TOP = 1, VK_STAGE_COMPUTE = 0x800, VK_STAGE_TRANSFER = 0x1000, VK_STAGE_BOTTOM = 0x2000, VK_STAGE_HOST = 0x4000,
  VK_ACCESS_SHADER = 0x60, VK_ACCESS_SHADER_WRITE = 0x40, VK_ACCESS_TRANSFER = 0x1800, VK_ACCESS_TRANSFER_WRITE = 0x1000, VK_ACCESS_HOST_READ = 0x2000,
  VK_QUERY_TYPE_TIMESTAMP = 2, VK_QUERY_RESULT_64_AND_WAIT = 3,
  VK_COMMAND_POOL_RESETS = 2, VK_MAPPED_MEMORY_RANGE = 6, VK_QUERY_POOL_CREATE_INFO = 11, VK_PIPELINE_CACHE_CREATE_INFO = 17, VK_MEMORY_BARRIER = 46,
  VK_PHYSICAL_DEVICE_PROPERTIES_2 = 1000059001, VK_PHYSICAL_DEVICE_ID_PROPERTIES = 1000071004, VK_PHYSICAL_DEVICE_MAINTENANCE_3 = 1000168000,
  VK_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES = 1000177000, VK_PHYSICAL_DEVICE_FEATURES_2 = 1000059000, VK_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES = 1000082000,
  VK_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES = 1000083000, VK_PHYSICAL_DEVICE_DRIVER_PROPERTIES = 1000196000,
  VK_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES = 1000280000,
  VK_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES = 1000094000, VK_SUBGROUP_SUMS = 5 /* basic operations and arithmetic */
};
#define VK_API_VERSION_1_1 ((1u << 22) | (1u << 12))
#define VK_API_VERSION_1_2 ((1u << 22) | (2u << 12))

typedef struct { uint32_t type; const void *next; const char *application; uint32_t application_version; const char *engine; uint32_t engine_version, api_version; } VkApplicationInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; const VkApplicationInfo *application; uint32_t layer_count; const char *const *layers; uint32_t extension_count; const char *const *extensions; } VkInstanceCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags, family, count; const float *priorities; } VkDeviceQueueCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags, queue_count; const VkDeviceQueueCreateInfo *queues; uint32_t layer_count; const char *const *layers; uint32_t extension_count; const char *const *extensions; const void *features; } VkDeviceCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; uint64_t size; uint32_t usage, sharing, family_count; const uint32_t *families; } VkBufferCreateInfo;
typedef struct { uint64_t size, alignment; uint32_t types; } VkMemoryRequirements;
typedef struct { uint32_t type; const void *next; uint64_t size; uint32_t memory_type; } VkMemoryAllocateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; size_t size; const uint32_t *code; } VkShaderModuleCreateInfo;
typedef struct { uint32_t binding, descriptor, count, stages; const VkHandle *samplers; } VkDescriptorSetLayoutBinding;
typedef struct { uint32_t type; const void *next; uint32_t flags, count; const VkDescriptorSetLayoutBinding *bindings; } VkDescriptorSetLayoutCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags, set_count; const VkHandle *sets; uint32_t range_count; const void *ranges; } VkPipelineLayoutCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags, stage; VkHandle module; const char *name; const void *specialization; } VkPipelineShaderStageCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; VkPipelineShaderStageCreateInfo stage; VkHandle layout, base; int32_t base_index; } VkComputePipelineCreateInfo;
typedef struct { uint32_t descriptor, count; } VkDescriptorPoolSize;
typedef struct { uint32_t type; const void *next; uint32_t flags, sets, size_count; const VkDescriptorPoolSize *sizes; } VkDescriptorPoolCreateInfo;
typedef struct { uint32_t type; const void *next; VkHandle pool; uint32_t count; const VkHandle *layouts; } VkDescriptorSetAllocateInfo;
typedef struct { VkHandle buffer; uint64_t offset, range; } VkDescriptorBufferInfo;
typedef struct { uint32_t type; const void *next; VkHandle set; uint32_t binding, element, count, descriptor; const void *image; const VkDescriptorBufferInfo *buffer; const VkHandle *view; } VkWriteDescriptorSet;
typedef struct { uint32_t type; const void *next; uint32_t flags, family; } VkCommandPoolCreateInfo;
typedef struct { uint32_t type; const void *next; VkHandle pool; uint32_t level, count; } VkCommandBufferAllocateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; const void *inheritance; } VkCommandBufferBeginInfo;
typedef struct { uint32_t type; const void *next; uint32_t wait_count; const VkHandle *waits; const uint32_t *stages; uint32_t command_count; const VkCommandBuffer *commands; uint32_t signal_count; const VkHandle *signals; } VkSubmitInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; } VkFenceCreateInfo;
typedef struct { uint32_t flags, count, timestamp_bits, width, height, depth; } VkQueueFamilyProperties;
typedef struct { uint32_t type_count; struct { uint32_t flags, heap; } types[32]; uint32_t heap_count; struct { uint64_t size; uint32_t flags; } heaps[16]; } VkPhysicalDeviceMemoryProperties;
typedef struct {
  uint32_t api_version, driver_version, vendor, device, type;
  char name[256];
  uint8_t cache_uuid[16];
  uint64_t limits[63]; /* 504 bytes, see vulkan_limit */
  uint32_t sparse[5];
} VkPhysicalDeviceProperties;
typedef struct { uint32_t type; void *next; uint32_t storage, uniform_and_storage, push_constants, in_out; } VkPhysicalDevice16BitStorageFeatures;
typedef struct { uint32_t type; void *next; uint32_t float16, int8; } VkPhysicalDeviceShaderFloat16Int8Features;
typedef struct { uint32_t type; void *next; uint32_t dot; } VkPhysicalDeviceShaderIntegerDotProductFeatures;
typedef struct { uint32_t type; void *next; uint32_t features[55]; } VkPhysicalDeviceFeatures2;
typedef struct { uint32_t type; void *next; VkPhysicalDeviceProperties is; } VkPhysicalDeviceProperties2;
typedef struct { uint32_t type; void *next; uint8_t device[16], driver[16], luid[8]; uint32_t nodes, luid_valid; } VkPhysicalDeviceIDProperties;
typedef struct { uint32_t type; void *next; uint32_t descriptors; uint64_t allocation; } VkPhysicalDeviceMaintenance3Properties;
typedef struct { uint32_t type; void *next; uint32_t size, stages, operations, quads; } VkPhysicalDeviceSubgroupProperties;
typedef struct { uint32_t type; void *next; uint32_t storage, uniform_and_storage, push_constants; } VkPhysicalDevice8BitStorageFeatures;
typedef struct { uint32_t type; void *next; uint32_t id; char name[256], info[256]; uint8_t conformance[4]; } VkPhysicalDeviceDriverProperties;
typedef struct { char name[256]; uint32_t version; } VkExtensionProperties;
typedef struct { uint32_t type; const void *next; VkHandle memory; uint64_t offset, size; } VkMappedMemoryRange;
typedef struct { uint32_t type; const void *next; uint32_t source, destination; } VkMemoryBarrier;
typedef struct { uint64_t source, destination, size; } VkBufferCopy;
typedef struct { uint32_t type; const void *next; uint32_t flags; VkHandle buffer; uint32_t format; uint64_t offset, range; } VkBufferViewCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags, query, count, statistics; } VkQueryPoolCreateInfo;
typedef struct { uint32_t type; const void *next; uint32_t flags; size_t size; const void *data; } VkPipelineCacheCreateInfo;

_Static_assert(sizeof(VkPhysicalDeviceProperties2) == 2 * sizeof(void *) + 824 && sizeof(VkPhysicalDeviceIDProperties) == 2 * sizeof(void *) + 48, "the specification's layout");
_Static_assert(offsetof(VkPhysicalDeviceProperties, limits) == 296 && sizeof(VkPhysicalDeviceProperties) == 824, "the specification's layout");
_Static_assert(sizeof(VkPhysicalDeviceMemoryProperties) == 520 && sizeof(VkQueueFamilyProperties) == 24, "the specification's layout");
/* Where a limit of 32 bits lies in `limits`. */
enum { VK_MAX_TEXELS = 20, VK_MAX_STORAGE_RANGE = 28, VK_MAX_PUSH_CONSTANTS = 32, VK_MAX_SHARED_MEMORY = 216, VK_MAX_GROUP_COUNT = 220, VK_MAX_GROUP_SIZE = 232,
       VK_MAX_STAGE_BUFFERS = 76, VK_MAX_GROUP_SIZES = 236, VK_MIN_STORAGE_ALIGNMENT = 328, VK_TIMESTAMP_PERIOD = 424 };
enum { VK_FEATURE_INT64 = 40, VK_FEATURE_INT16 = 41 }; /* in VkPhysicalDeviceFeatures2 */

#define VULKAN_GLOBAL(X)                                                                                     \
  X(VkResult, vkCreateInstance, (const VkInstanceCreateInfo *, const void *, VkInstance *))                   \
  X(VkResult, vkEnumerateInstanceVersion, (uint32_t *))
#define VULKAN_FUNCTIONS(X)                                                                                  \
  X(void, vkDestroyInstance, (VkInstance, const void *))                                                     \
  X(VkResult, vkEnumeratePhysicalDevices, (VkInstance, uint32_t *, VkPhysicalDevice *))                      \
  X(void, vkGetPhysicalDeviceProperties, (VkPhysicalDevice, VkPhysicalDeviceProperties *))                   \
  X(void, vkGetPhysicalDeviceFeatures2, (VkPhysicalDevice, VkPhysicalDeviceFeatures2 *))                     \
  X(void, vkGetPhysicalDeviceMemoryProperties, (VkPhysicalDevice, VkPhysicalDeviceMemoryProperties *))       \
  X(void, vkGetPhysicalDeviceQueueFamilyProperties, (VkPhysicalDevice, uint32_t *, VkQueueFamilyProperties *)) \
  X(VkResult, vkCreateDevice, (VkPhysicalDevice, const VkDeviceCreateInfo *, const void *, VkDevice *))      \
  X(void, vkDestroyDevice, (VkDevice, const void *))                                                         \
  X(void, vkGetDeviceQueue, (VkDevice, uint32_t, uint32_t, VkQueue *))                                       \
  X(VkResult, vkCreateBuffer, (VkDevice, const VkBufferCreateInfo *, const void *, VkHandle *))              \
  X(void, vkGetBufferMemoryRequirements, (VkDevice, VkHandle, VkMemoryRequirements *))                       \
  X(VkResult, vkAllocateMemory, (VkDevice, const VkMemoryAllocateInfo *, const void *, VkHandle *))          \
  X(VkResult, vkBindBufferMemory, (VkDevice, VkHandle, VkHandle, uint64_t))                                  \
  X(VkResult, vkMapMemory, (VkDevice, VkHandle, uint64_t, uint64_t, uint32_t, void **))                      \
  X(VkResult, vkCreateShaderModule, (VkDevice, const VkShaderModuleCreateInfo *, const void *, VkHandle *))  \
  X(VkResult, vkCreateDescriptorSetLayout, (VkDevice, const VkDescriptorSetLayoutCreateInfo *, const void *, VkHandle *)) \
  X(VkResult, vkCreatePipelineLayout, (VkDevice, const VkPipelineLayoutCreateInfo *, const void *, VkHandle *)) \
  X(VkResult, vkCreateComputePipelines, (VkDevice, VkHandle, uint32_t, const VkComputePipelineCreateInfo *, const void *, VkHandle *)) \
  X(VkResult, vkCreateDescriptorPool, (VkDevice, const VkDescriptorPoolCreateInfo *, const void *, VkHandle *)) \
  X(VkResult, vkAllocateDescriptorSets, (VkDevice, const VkDescriptorSetAllocateInfo *, VkHandle *))         \
  X(void, vkUpdateDescriptorSets, (VkDevice, uint32_t, const VkWriteDescriptorSet *, uint32_t, const void *)) \
  X(VkResult, vkCreateCommandPool, (VkDevice, const VkCommandPoolCreateInfo *, const void *, VkHandle *))    \
  X(VkResult, vkAllocateCommandBuffers, (VkDevice, const VkCommandBufferAllocateInfo *, VkCommandBuffer *))  \
  X(VkResult, vkBeginCommandBuffer, (VkCommandBuffer, const VkCommandBufferBeginInfo *))                     \
  X(void, vkCmdBindPipeline, (VkCommandBuffer, uint32_t, VkHandle))                                          \
  X(void, vkCmdBindDescriptorSets, (VkCommandBuffer, uint32_t, VkHandle, uint32_t, uint32_t, const VkHandle *, uint32_t, const uint32_t *)) \
  X(void, vkCmdDispatch, (VkCommandBuffer, uint32_t, uint32_t, uint32_t))                                    \
  X(VkResult, vkEndCommandBuffer, (VkCommandBuffer))                                                         \
  X(VkResult, vkCreateFence, (VkDevice, const VkFenceCreateInfo *, const void *, VkHandle *))                \
  X(VkResult, vkQueueSubmit, (VkQueue, uint32_t, const VkSubmitInfo *, VkHandle))                            \
  X(VkResult, vkWaitForFences, (VkDevice, uint32_t, const VkHandle *, uint32_t, uint64_t))                   \
  X(void, vkGetPhysicalDeviceProperties2, (VkPhysicalDevice, VkPhysicalDeviceProperties2 *))                 \
  X(VkResult, vkEnumerateDeviceExtensionProperties, (VkPhysicalDevice, const char *, uint32_t *, VkExtensionProperties *)) \
  X(VkResult, vkCreateBufferView, (VkDevice, const VkBufferViewCreateInfo *, const void *, VkHandle *))      \
  X(void, vkDestroyBufferView, (VkDevice, VkHandle, const void *))                                           \
  X(void, vkDestroyBuffer, (VkDevice, VkHandle, const void *))                                               \
  X(void, vkFreeMemory, (VkDevice, VkHandle, const void *))                                                  \
  X(VkResult, vkInvalidateMappedMemoryRanges, (VkDevice, uint32_t, const VkMappedMemoryRange *))             \
  X(void, vkDestroyShaderModule, (VkDevice, VkHandle, const void *))                                         \
  X(void, vkDestroyDescriptorSetLayout, (VkDevice, VkHandle, const void *))                                  \
  X(void, vkDestroyPipelineLayout, (VkDevice, VkHandle, const void *))                                       \
  X(void, vkDestroyPipeline, (VkDevice, VkHandle, const void *))                                             \
  X(void, vkDestroyDescriptorPool, (VkDevice, VkHandle, const void *))                                       \
  X(void, vkDestroyCommandPool, (VkDevice, VkHandle, const void *))                                          \
  X(void, vkDestroyFence, (VkDevice, VkHandle, const void *))                                                \
  X(VkResult, vkResetFences, (VkDevice, uint32_t, const VkHandle *))                                         \
  X(void, vkCmdPipelineBarrier, (VkCommandBuffer, uint32_t, uint32_t, uint32_t, uint32_t, const VkMemoryBarrier *, uint32_t, const void *, uint32_t, const void *)) \
  X(void, vkCmdCopyBuffer, (VkCommandBuffer, VkHandle, VkHandle, uint32_t, const VkBufferCopy *))            \
  X(VkResult, vkCreateQueryPool, (VkDevice, const VkQueryPoolCreateInfo *, const void *, VkHandle *))        \
  X(void, vkDestroyQueryPool, (VkDevice, VkHandle, const void *))                                            \
  X(void, vkCmdResetQueryPool, (VkCommandBuffer, VkHandle, uint32_t, uint32_t))                              \
  X(void, vkCmdWriteTimestamp, (VkCommandBuffer, uint32_t, VkHandle, uint32_t))                              \
  X(VkResult, vkGetQueryPoolResults, (VkDevice, VkHandle, uint32_t, uint32_t, size_t, void *, uint64_t, uint32_t)) \
  X(VkResult, vkCreatePipelineCache, (VkDevice, const VkPipelineCacheCreateInfo *, const void *, VkHandle *)) \
  X(void, vkDestroyPipelineCache, (VkDevice, VkHandle, const void *))                                        \
  X(VkResult, vkGetPipelineCacheData, (VkDevice, VkHandle, size_t *, void *))

typedef struct {
  void *library;
  char name[64];
  uint32_t version; /* of the loader */
  VkInstance instance;
#define VULKAN_MEMBER(result, name, parameters) result(*name) parameters;
  VULKAN_GLOBAL(VULKAN_MEMBER)
  VULKAN_FUNCTIONS(VULKAN_MEMBER)
#undef VULKAN_MEMBER
} vulkan;

/* Whether the threads of a subgroup can sum together in shaders that compute. */
static inline int vulkan_sums(const VkPhysicalDeviceSubgroupProperties *is) {
  return (is->stages & VK_SHADER_STAGE_COMPUTE_BIT) && (is->operations & VK_SUBGROUP_SUMS) == VK_SUBGROUP_SUMS;
}

/* Find a Vulkan loader, `named` alone where it is not NULL, and make an instance of 1.1. Returns 0, or -1 with the reason in `why`. */
int vulkan_load(vulkan *found, const char *named, char *why, size_t size);

#endif
