#include "gpu_probe.h"
#include "self_tests.h"
#include "vulkan.h"

#include <string.h>

#define MOST_DEVICES 8
#define MOST_FAMILIES 16
#define REASON 200
#define WAIT_NS 20000000000u
enum { COUNT = 1024, GROUP = 64 };

static const char API[] = "vulkan";

/* One device, and what a self-test made on it; all of it goes with the process. */
typedef struct {
  const vulkan *api;
  VkPhysicalDevice physical;
  VkDevice device;
  VkQueue queue;
  VkHandle layout, pipeline_layout, pipeline, pool, set, commands_of, fence, buffers[2], memories[2];
  VkCommandBuffer commands;
  void *mapped[2];
  uint32_t family;
  char why[REASON];
} bench;

#define TRY(call)                                                       \
  do {                                                                  \
    VkResult result_ = on->api->call;                                   \
    if (result_ != VK_SUCCESS) {                                        \
      snprintf(on->why, sizeof on->why, "%.*s: error %d", (int)strcspn(#call, "("), #call, result_); \
      return -1;                                                        \
    }                                                                   \
  } while (0)

static int open_device(bench *on, int half) {
  VkQueueFamilyProperties families[MOST_FAMILIES];
  uint32_t count = MOST_FAMILIES;
  const float priority = 1;
  on->api->vkGetPhysicalDeviceQueueFamilyProperties(on->physical, &count, families);
  for (on->family = 0; on->family < count && !(families[on->family].flags & VK_QUEUE_COMPUTE_BIT); ++on->family) {}
  if (on->family == count) {
    snprintf(on->why, sizeof on->why, "no queue for computing");
    return -1;
  }
  VkPhysicalDevice16BitStorageFeatures storage = {.type = VK_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, .storage = 1};
  const VkPhysicalDeviceShaderFloat16Int8Features float16 = {.type = VK_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, .next = &storage, .float16 = 1};
  const char *const extensions[] = {"VK_KHR_shader_float16_int8"};
  const VkDeviceQueueCreateInfo queue = {.type = VK_DEVICE_QUEUE_CREATE_INFO, .family = on->family, .count = 1, .priorities = &priority};
  const VkDeviceCreateInfo info = {.type = VK_DEVICE_CREATE_INFO, .next = half ? &float16 : NULL, .queue_count = 1, .queues = &queue,
                                   .extension_count = half ? 1 : 0, .extensions = extensions};
  TRY(vkCreateDevice(on->physical, &info, NULL, &on->device));
  on->api->vkGetDeviceQueue(on->device, on->family, 0, &on->queue);
  return 0;
}

static int make_buffer(bench *on, int at, const void *values, size_t size) {
  const VkBufferCreateInfo info = {.type = VK_BUFFER_CREATE_INFO, .size = size, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
  VkPhysicalDeviceMemoryProperties memory;
  VkMemoryRequirements needed;
  uint32_t type = 0;
  TRY(vkCreateBuffer(on->device, &info, NULL, &on->buffers[at]));
  on->api->vkGetBufferMemoryRequirements(on->device, on->buffers[at], &needed);
  on->api->vkGetPhysicalDeviceMemoryProperties(on->physical, &memory);
  while (type < memory.type_count && !((needed.types >> type & 1) && (memory.types[type].flags & VK_MEMORY_HOST_VISIBLE_AND_COHERENT) == VK_MEMORY_HOST_VISIBLE_AND_COHERENT))
    ++type;
  if (type == memory.type_count) {
    snprintf(on->why, sizeof on->why, "no memory that the CPU sees");
    return -1;
  }
  const VkMemoryAllocateInfo wanted = {.type = VK_MEMORY_ALLOCATE_INFO, .size = needed.size, .memory_type = type};
  TRY(vkAllocateMemory(on->device, &wanted, NULL, &on->memories[at]));
  TRY(vkBindBufferMemory(on->device, on->buffers[at], on->memories[at], 0));
  TRY(vkMapMemory(on->device, on->memories[at], 0, size, 0, &on->mapped[at]));
  memcpy(on->mapped[at], values, size);
  return 0;
}

static int make_pipeline(bench *on, const uint32_t *code, size_t size) {
  VkHandle module;
  const VkShaderModuleCreateInfo shader = {.type = VK_SHADER_MODULE_CREATE_INFO, .size = size, .code = code};
  const VkDescriptorSetLayoutBinding bindings[2] = {{0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
                                                    {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL}};
  const VkDescriptorSetLayoutCreateInfo layout = {.type = VK_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .count = 2, .bindings = bindings};
  TRY(vkCreateShaderModule(on->device, &shader, NULL, &module));
  TRY(vkCreateDescriptorSetLayout(on->device, &layout, NULL, &on->layout));
  const VkPipelineLayoutCreateInfo whole = {.type = VK_PIPELINE_LAYOUT_CREATE_INFO, .set_count = 1, .sets = &on->layout};
  TRY(vkCreatePipelineLayout(on->device, &whole, NULL, &on->pipeline_layout));
  const VkComputePipelineCreateInfo info = {
      .type = VK_COMPUTE_PIPELINE_CREATE_INFO, .layout = on->pipeline_layout, .base_index = -1,
      .stage = {.type = VK_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .name = "main"}};
  TRY(vkCreateComputePipelines(on->device, 0, 1, &info, NULL, &on->pipeline));
  return 0;
}

static int bind_buffers(bench *on, size_t size) {
  const VkDescriptorPoolSize room = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 2};
  const VkDescriptorPoolCreateInfo pool = {.type = VK_DESCRIPTOR_POOL_CREATE_INFO, .sets = 1, .size_count = 1, .sizes = &room};
  TRY(vkCreateDescriptorPool(on->device, &pool, NULL, &on->pool));
  const VkDescriptorSetAllocateInfo set = {.type = VK_DESCRIPTOR_SET_ALLOCATE_INFO, .pool = on->pool, .count = 1, .layouts = &on->layout};
  TRY(vkAllocateDescriptorSets(on->device, &set, &on->set));
  for (uint32_t i = 0; i < 2; ++i) {
    const VkDescriptorBufferInfo buffer = {on->buffers[i], 0, size};
    const VkWriteDescriptorSet write = {
        .type = VK_WRITE_DESCRIPTOR_SET, .set = on->set, .binding = i, .count = 1, .descriptor = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .buffer = &buffer};
    on->api->vkUpdateDescriptorSets(on->device, 1, &write, 0, NULL);
  }
  return 0;
}

static int submit(bench *on) {
  const VkCommandPoolCreateInfo pool = {.type = VK_COMMAND_POOL_CREATE_INFO, .family = on->family};
  const VkCommandBufferBeginInfo begin = {.type = VK_COMMAND_BUFFER_BEGIN_INFO};
  const VkFenceCreateInfo fence = {.type = VK_FENCE_CREATE_INFO};
  TRY(vkCreateCommandPool(on->device, &pool, NULL, &on->commands_of));
  const VkCommandBufferAllocateInfo wanted = {.type = VK_COMMAND_BUFFER_ALLOCATE_INFO, .pool = on->commands_of, .count = 1};
  TRY(vkAllocateCommandBuffers(on->device, &wanted, &on->commands));
  TRY(vkBeginCommandBuffer(on->commands, &begin));
  on->api->vkCmdBindPipeline(on->commands, VK_PIPELINE_BIND_POINT_COMPUTE, on->pipeline);
  on->api->vkCmdBindDescriptorSets(on->commands, VK_PIPELINE_BIND_POINT_COMPUTE, on->pipeline_layout, 0, 1, &on->set, 0, NULL);
  on->api->vkCmdDispatch(on->commands, COUNT / GROUP, 1, 1);
  TRY(vkEndCommandBuffer(on->commands));
  TRY(vkCreateFence(on->device, &fence, NULL, &on->fence));
  const VkSubmitInfo info = {.type = VK_SUBMIT_INFO, .command_count = 1, .commands = &on->commands};
  TRY(vkQueueSubmit(on->queue, 1, &info, on->fence));
  TRY(vkWaitForFences(on->device, 1, &on->fence, 1, WAIT_NS));
  return 0;
}

/* y = 2 x + 1 over `size` bytes of values. */
static int compute(bench *on, int half, const void *x, void *y, size_t size, const uint32_t *code, size_t code_size) {
  if (open_device(on, half) || make_buffer(on, 0, x, size) || make_buffer(on, 1, y, size)) return -1;
  if (make_pipeline(on, code, code_size) || bind_buffers(on, size) || submit(on)) return -1;
  memcpy(y, on->mapped[1], size);
  return 0;
}

static int test_buffer(bench *on) {
  float x[COUNT], y[COUNT];
  for (int i = 0; i < COUNT; ++i) x[i] = (float)(i % 251), y[i] = -1;
  if (compute(on, 0, x, y, sizeof y, SCALE_SPIRV, sizeof SCALE_SPIRV)) return -1;
  return probe_compare(y, COUNT, on->why, sizeof on->why);
}

static int test_half(bench *on) {
  uint16_t x[COUNT], y[COUNT];
  for (unsigned i = 0; i < COUNT; ++i) x[i] = probe_half(i % 251), y[i] = 0x7e00;
  if (compute(on, 1, x, y, sizeof y, SCALE16_SPIRV, sizeof SCALE16_SPIRV)) return -1;
  return probe_compare_half(y, COUNT, on->why, sizeof on->why);
}

static void run_test(FILE *out, const vulkan *api, VkPhysicalDevice physical, int number, const char *name, int (*test)(bench *)) {
  bench on = {.api = api, .physical = physical};
  probe_begin(out, API, number, name);
  probe_end(out, API, number, name, test(&on) ? on.why : "ok");
  if (on.device) api->vkDestroyDevice(on.device, NULL);
}

static uint32_t limit_of(const VkPhysicalDeviceProperties *properties, size_t offset) {
  uint32_t value;
  memcpy(&value, (const char *)properties->limits + offset, sizeof value);
  return value;
}

static void probe_device(FILE *out, const vulkan *api, VkPhysicalDevice physical, int number) {
  VkPhysicalDeviceProperties is = {0};
  VkPhysicalDevice16BitStorageFeatures storage = {.type = VK_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
  VkPhysicalDeviceShaderFloat16Int8Features float16 = {.type = VK_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, .next = &storage};
  VkPhysicalDeviceFeatures2 features = {.type = VK_PHYSICAL_DEVICE_FEATURES_2, .next = &float16};
  VkPhysicalDeviceSubgroupProperties subgroups = {.type = VK_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceProperties2 more = {.type = VK_PHYSICAL_DEVICE_PROPERTIES_2, .next = &subgroups};
  VkPhysicalDeviceMemoryProperties memory;
  uint64_t largest = 0;
  api->vkGetPhysicalDeviceProperties(physical, &is);
  is.name[sizeof is.name - 1] = 0;
  api->vkGetPhysicalDeviceMemoryProperties(physical, &memory);
  for (uint32_t i = 0; i < memory.heap_count; ++i) largest = memory.heaps[i].size > largest ? memory.heaps[i].size : largest;
  if (is.api_version >= VK_API_VERSION_1_1) api->vkGetPhysicalDeviceFeatures2(physical, &features), api->vkGetPhysicalDeviceProperties2(physical, &more);
  fprintf(out, "{\"api\":\"vulkan\",\"device\":%d,\"name\":", number);
  probe_string(out, is.name);
  fprintf(out, ",\"version\":\"%u.%u.%u\",\"driver\":\"%u\",\"vendor\":%u,\"device_number\":%u,\"type\":%u", is.api_version >> 22, is.api_version >> 12 & 1023,
          is.api_version & 4095, is.driver_version, is.vendor, is.device, is.type);
  fprintf(out, ",\"memory_bytes\":%llu,\"allocation_bytes\":%u,\"local_bytes\":%u,\"group_size\":%u,\"push_bytes\":%u,\"float16\":%u,\"storage16\":%u,\"subgroup\":%u}\n",
          (unsigned long long)largest, limit_of(&is, VK_MAX_STORAGE_RANGE), limit_of(&is, VK_MAX_SHARED_MEMORY), limit_of(&is, VK_MAX_GROUP_SIZE),
          limit_of(&is, VK_MAX_PUSH_CONSTANTS), float16.float16, storage.storage, vulkan_sums(&subgroups) ? subgroups.size : 0);
  fflush(out);
  if (is.api_version < VK_API_VERSION_1_1) {
    probe_end(out, API, number, "buffer", "Vulkan older than 1.1");
    return;
  }
  run_test(out, api, physical, number, "buffer", test_buffer);
  if (float16.float16 && storage.storage) run_test(out, api, physical, number, "fp16", test_half);
}

void probe_vulkan(FILE *out, const char *library) {
  static vulkan api;
  VkPhysicalDevice devices[MOST_DEVICES];
  uint32_t count = MOST_DEVICES;
  char why[REASON];
  const int failed = vulkan_load(&api, library, why, sizeof why);
  fprintf(out, "{\"api\":\"vulkan\",\"%s\":", failed ? "error" : "library");
  probe_string(out, failed ? why : api.name);
  fprintf(out, "}\n");
  fflush(out);
  if (failed) return;
  if (api.vkEnumeratePhysicalDevices(api.instance, &count, devices) >= 0)
    for (uint32_t i = 0; i < count && i < MOST_DEVICES; ++i) probe_device(out, &api, devices[i], (int)i);
  api.vkDestroyInstance(api.instance, NULL);
}
