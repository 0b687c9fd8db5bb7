/* Select the device of a network on Vulkan, and allocate its memory. */
#include "vulkan_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 16
#define MOST_FAMILIES 16
#define MOST_EXTENSIONS 1024
#define STAGED ((uint64_t)16 << 20) /* bytes that go to the device at once */
#define BANK_ALIGNMENT 512          /* at least that of any device's storage buffers, which is 256 at most */

int vulkan_refuse(gpu_part *part, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(part->why, GPU_REASON, format, values);
  va_end(values);
  return -1;
}

int vulkan_failed(gpu_part *part, const char *call, VkResult result) {
  const int name = (int)strcspn(call, "(");
  if (result != VK_ERROR_DEVICE_LOST) return vulkan_refuse(part, "%.*s: error %d", name, call, result);
  snprintf(part->broken, sizeof part->broken, "the GPU was lost (%.*s)", name, call);
  return vulkan_refuse(part, "%s", part->broken);
}

uint32_t vulkan_limit(const gpu_part *part, size_t offset) {
  uint32_t value;
  memcpy(&value, (const char *)part->is.limits + offset, sizeof value);
  return value;
}

/* -- the device -- */

/* How good a device is where no name was asked for: a GPU before software. */
static int rank_of(const VkPhysicalDeviceProperties *is) { return is->type == VK_DEVICE_TYPE_INTEGRATED || is->type == VK_DEVICE_TYPE_DISCRETE ? 2 : 1; }

static int choose_device(gpu_part *part, const char *named) {
  VkPhysicalDevice devices[MOST_DEVICES];
  uint32_t count = MOST_DEVICES;
  int best = 0, old = 0;
  if (part->api.vkEnumeratePhysicalDevices(part->api.instance, &count, devices) < 0 || !count) return vulkan_refuse(part, "Vulkan has no device");
  for (uint32_t i = 0; i < count; ++i) {
    VkPhysicalDeviceProperties is;
    part->api.vkGetPhysicalDeviceProperties(devices[i], &is);
    is.name[sizeof is.name - 1] = 0;
    if (named && !strstr(is.name, named)) continue;
    if (is.api_version < VK_API_VERSION_1_1) {
      old = 1;
      continue;
    }
    if (rank_of(&is) <= best) continue;
    best = rank_of(&is);
    part->physical = devices[i];
    part->is = is;
  }
  if (best) return 0;
  return old ? vulkan_refuse(part, "the GPU has a Vulkan older than 1.1") : vulkan_refuse(part, "no device of Vulkan is called %.100s", named);
}

static void read_properties(gpu_part *part) {
  VkPhysicalDeviceSubgroupProperties subgroups = {.type = VK_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceMaintenance3Properties sizes = {.type = VK_PHYSICAL_DEVICE_MAINTENANCE_3, .next = &subgroups};
  VkPhysicalDeviceIDProperties ids = {.type = VK_PHYSICAL_DEVICE_ID_PROPERTIES, .next = &sizes};
  VkPhysicalDeviceDriverProperties driver = {.type = VK_PHYSICAL_DEVICE_DRIVER_PROPERTIES, .next = &ids};
  const int knows_driver = part->is.api_version >= VK_API_VERSION_1_2;
  VkPhysicalDeviceProperties2 all = {.type = VK_PHYSICAL_DEVICE_PROPERTIES_2, .next = knows_driver ? (void *)&driver : &ids};
  part->api.vkGetPhysicalDeviceProperties2(part->physical, &all);
  memcpy(part->driver_uuid, ids.driver, sizeof part->driver_uuid);
  part->largest_allocation = sizes.allocation;
  part->has = vulkan_sums(&subgroups) ? NEEDS_SUMS : 0;
  snprintf(part->driver, sizeof part->driver, "%.255s", *driver.name ? driver.name : "vulkan");
  part->api.vkGetPhysicalDeviceMemoryProperties(part->physical, &part->memory);
}

static int choose_queue(gpu_part *part) {
  VkQueueFamilyProperties families[MOST_FAMILIES];
  uint32_t count = MOST_FAMILIES;
  part->api.vkGetPhysicalDeviceQueueFamilyProperties(part->physical, &count, families);
  for (part->family = 0; part->family < count && !(families[part->family].flags & VK_QUEUE_COMPUTE_BIT); ++part->family) {}
  if (part->family == count) return vulkan_refuse(part, "%s has no queue for computing", part->is.name);
  part->timestamp_bits = families[part->family].timestamp_bits;
  return 0;
}

static int has_extension(const VkExtensionProperties *all, uint32_t count, const char *name) {
  for (uint32_t i = 0; i < count; ++i)
    if (!strcmp(all[i].name, name)) return 1;
  return 0;
}

/* Make the device with all that kernels could need and that it has. */
static int make_device(gpu_part *part) {
  VkPhysicalDevice8BitStorageFeatures storage8 = {.type = VK_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES};
  VkPhysicalDevice16BitStorageFeatures storage16 = {.type = VK_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
  VkPhysicalDeviceShaderFloat16Int8Features small = {.type = VK_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot = {.type = VK_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES};
  VkPhysicalDeviceFeatures2 features = {.type = VK_PHYSICAL_DEVICE_FEATURES_2, .next = &storage16}, wanted = {.type = VK_PHYSICAL_DEVICE_FEATURES_2};
  uint32_t count = MOST_EXTENSIONS, used = 0;
  const char *names[4];
  VkExtensionProperties *all = calloc(count, sizeof *all);
  if (!all) return vulkan_refuse(part, "no memory");
  if (part->api.vkEnumerateDeviceExtensionProperties(part->physical, NULL, &count, all) < 0) count = 0;
  if (has_extension(all, count, "VK_KHR_shader_float16_int8")) names[used++] = "VK_KHR_shader_float16_int8", small.next = features.next, features.next = &small;
  if (has_extension(all, count, "VK_KHR_storage_buffer_storage_class") && has_extension(all, count, "VK_KHR_8bit_storage"))
    names[used++] = "VK_KHR_storage_buffer_storage_class", names[used++] = "VK_KHR_8bit_storage", storage8.next = features.next, features.next = &storage8;
  if (has_extension(all, count, "VK_KHR_shader_integer_dot_product"))
    names[used++] = "VK_KHR_shader_integer_dot_product", dot.next = features.next, features.next = &dot;
  free(all);
  part->api.vkGetPhysicalDeviceFeatures2(part->physical, &features);
  wanted.next = features.next;
  wanted.features[VK_FEATURE_INT64] = features.features[VK_FEATURE_INT64];
  wanted.features[VK_FEATURE_INT16] = features.features[VK_FEATURE_INT16];
  storage16 = (VkPhysicalDevice16BitStorageFeatures){storage16.type, storage16.next, storage16.storage, 0, 0, 0};
  storage8 = (VkPhysicalDevice8BitStorageFeatures){storage8.type, storage8.next, storage8.storage, 0, 0};
  part->has |= (small.float16 ? NEEDS_FLOAT16 : 0) | (small.int8 ? NEEDS_INT8 : 0) | (wanted.features[VK_FEATURE_INT16] ? NEEDS_INT16 : 0) |
               (wanted.features[VK_FEATURE_INT64] ? NEEDS_INT64 : 0) | (storage16.storage ? NEEDS_STORAGE16 : 0) | (storage8.storage ? NEEDS_STORAGE8 : 0) |
               (dot.dot ? NEEDS_DOT : 0);
  const float priority = 1;
  const VkDeviceQueueCreateInfo queue = {.type = VK_DEVICE_QUEUE_CREATE_INFO, .family = part->family, .count = 1, .priorities = &priority};
  const VkDeviceCreateInfo info = {
      .type = VK_DEVICE_CREATE_INFO, .next = &wanted, .queue_count = 1, .queues = &queue, .extension_count = used, .extensions = names};
  TRY(vkCreateDevice(part->physical, &info, NULL, &part->device));
  part->api.vkGetDeviceQueue(part->device, part->family, 0, &part->queue);
  return 0;
}

int vulkan_open_device(gpu_part *part, const tvmflow_gpu *wanted) {
  if (vulkan_load(&part->api, wanted->library, part->why, GPU_REASON)) return -1;
  if (choose_device(part, wanted->device)) return -1;
  read_properties(part);
  return choose_queue(part) || make_device(part);
}

int vulkan_submit(gpu_part *part, VkCommandBuffer commands) {
  const VkSubmitInfo info = {.type = VK_SUBMIT_INFO, .command_count = 1, .commands = &commands};
  TRY(vkResetFences(part->device, 1, &part->fence));
  TRY(vkQueueSubmit(part->queue, 1, &info, part->fence));
  VkResult result = part->api.vkWaitForFences(part->device, 1, &part->fence, 1, GPU_TIMEOUT_NS);
  if (result == VK_SUCCESS) return 0;
  part->hangs = 1;
  if (result != VK_TIMEOUT) return vulkan_failed(part, "vkWaitForFences", result);
  snprintf(part->broken, sizeof part->broken, "the GPU did not end within %g s", (double)GPU_TIMEOUT_NS * 1e-9);
  return vulkan_refuse(part, "%s", part->broken);
}

/* -- memory -- */

uint64_t vulkan_size_of(const plan_value *value) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < value->ndim; ++i) count *= (uint64_t)value->shape[i];
  return (count * value->bits + 7) / 8;
}

const bank *vulkan_bank_of(const gpu_part *part, const plan_value *value, uint64_t *offset) {
  const room *in = &part->rooms[value->place];
  uint64_t at = value->offset;
  const bank *found = in->banks;
  if (value->place == PLAN_INPUT) at += part->starts[value->index];
  if (value->place == PLAN_OUTPUT) at += part->starts[plan_api.inputs + value->index];
  while (found + 1 < in->banks + in->count && at >= found->end) ++found;
  *offset = at - found->begin;
  return found;
}

/* The first kind of memory with all of `flags`, or -1. */
static int type_with(const gpu_part *part, uint32_t allowed, uint32_t flags) {
  for (uint32_t i = 0; i < part->memory.type_count; ++i)
    if ((allowed >> i & 1) && (part->memory.types[i].flags & flags) == flags) return (int)i;
  return -1;
}

/* Give a bank its buffer and memory of the first kind of `wishes` (0 ends them and allows any) that has room. */
static int make_bank(gpu_part *part, bank *made, const uint32_t *preferences, const char *what) {
  const VkBufferCreateInfo info = {.type = VK_BUFFER_CREATE_INFO,
                                   .size = (made->end - made->begin + BANK_ALIGNMENT - 1) / BANK_ALIGNMENT * BANK_ALIGNMENT,
                                   .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TEXEL_BUFFER | VK_BUFFER_USAGE_TRANSFER};
  VkMemoryRequirements needed;
  const double megabytes = (double)info.size / 1e6;
  TRY(vkCreateBuffer(part->device, &info, NULL, &made->buffer));
  part->api.vkGetBufferMemoryRequirements(part->device, made->buffer, &needed);
  for (const uint32_t *wish = preferences;; ++wish) {
    const int type = type_with(part, needed.types, *wish);
    VkMemoryAllocateInfo wanted = {.type = VK_MEMORY_ALLOCATE_INFO, .size = needed.size, .memory_type = (uint32_t)type};
    if (type >= 0 && needed.size <= part->memory.heaps[part->memory.types[type].heap].size &&
        part->api.vkAllocateMemory(part->device, &wanted, NULL, &made->memory) == VK_SUCCESS) {
      const uint32_t flags = part->memory.types[type].flags;
      made->coherent = (flags & VK_MEMORY_HOST_COHERENT) != 0;
      TRY(vkBindBufferMemory(part->device, made->buffer, made->memory, 0));
      if (flags & VK_MEMORY_HOST_VISIBLE) TRY(vkMapMemory(part->device, made->memory, 0, needed.size, 0, (void **)&made->mapped));
      return 0;
    }
    made->memory = 0;
    if (!*wish) return vulkan_refuse(part, "%s has no %.1f MB of memory for %s", part->is.name, megabytes, what);
  }
}

static int by_offset(const void *a, const void *b) {
  const uint64_t first = (*(const plan_value *const *)a)->offset, second = (*(const plan_value *const *)b)->offset;
  return (first > second) - (first < second);
}

/* Cut arena or constants into as few banks as the device allows, no value across two; returns how many, or -1. */
static int64_t split_into_banks(gpu_part *part, const plan_value **values, uint32_t count, bank *banks, const char *what) {
  int64_t made = 0;
  qsort(values, count, sizeof *values, by_offset);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t begin = values[i]->offset, end = begin + vulkan_size_of(values[i]);
    if (made && (begin < banks[made - 1].end || end - banks[made - 1].begin <= part->largest_allocation)) {
      if (end > banks[made - 1].end) banks[made - 1].end = end;
    } else banks[made++] = (bank){.begin = begin, .end = end};
    if (banks[made - 1].end - banks[made - 1].begin > part->largest_allocation)
      return vulkan_refuse(part, "%s allocates at most %.1f MB at once, too few for %s", part->is.name, (double)part->largest_allocation / 1e6, what);
  }
  return made;
}

static int make_room(gpu_part *part, plan_place place, const uint32_t *preferences, const char *what) {
  room *made = &part->rooms[place];
  uint32_t count = 0;
  const plan_value **values = calloc(plan.value_count + 1, sizeof *values);
  made->banks = calloc(plan.value_count + 1, sizeof *made->banks);
  if (!values || !made->banks) return free(values), vulkan_refuse(part, "no memory");
  for (uint32_t i = 0; i < plan.value_count; ++i)
    if (plan.values[i].place == place) values[count++] = &plan.values[i];
  const int64_t cuts = split_into_banks(part, values, count, made->banks, what);
  free(values);
  if (cuts < 0) return -1;
  made->count = (uint32_t)cuts;
  for (uint32_t i = 0; i < made->count; ++i)
    if (make_bank(part, &made->banks[i], preferences, what)) return -1;
  return 0;
}

/* One bank for all inputs or all outputs. */
static int make_ends(gpu_part *part, plan_place place, const uint32_t *preferences, const char *what) {
  const tvmflow_tensor *tensors = place == PLAN_INPUT ? plan.inputs : plan.outputs;
  const uint32_t count = place == PLAN_INPUT ? plan_api.inputs : plan_api.outputs;
  room *made = &part->rooms[place];
  uint64_t *starts = part->starts + (place == PLAN_INPUT ? 0 : plan_api.inputs), end = 0;
  made->banks = calloc(1, sizeof *made->banks);
  if (!made->banks) return vulkan_refuse(part, "no memory");
  for (uint32_t i = 0; i < count; ++i) {
    starts[i] = end;
    end += (tensors[i].size + BANK_ALIGNMENT - 1) / BANK_ALIGNMENT * BANK_ALIGNMENT;
  }
  made->count = 1;
  made->banks->end = end ? end : BANK_ALIGNMENT;
  if (make_bank(part, made->banks, preferences, what)) return -1;
  return made->banks->mapped ? 0 : vulkan_refuse(part, "%s has no memory for %s that the CPU sees", part->is.name, what);
}

/* Bring bytes of the constants into a bank that the CPU does not see, in pieces through one that it does. */
static int upload(gpu_part *part, const bank *to, bank *staged) {
  const VkCommandBufferBeginInfo begin = {.type = VK_COMMAND_BUFFER_BEGIN_INFO};
  const VkCommandBufferAllocateInfo wanted = {.type = VK_COMMAND_BUFFER_ALLOCATE_INFO, .pool = part->command_pool, .count = 1};
  VkCommandBuffer commands;
  TRY(vkAllocateCommandBuffers(part->device, &wanted, &commands));
  for (uint64_t at = to->begin; at < to->end; at += STAGED) {
    const uint64_t size = to->end - at < STAGED ? to->end - at : STAGED;
    const VkBufferCopy copy = {0, at - to->begin, size};
    const VkMemoryBarrier barrier = {.type = VK_MEMORY_BARRIER, .source = VK_ACCESS_TRANSFER_WRITE, .destination = VK_ACCESS_SHADER | VK_ACCESS_TRANSFER};
    memcpy(staged->mapped, plan.constants + at, size);
    TRY(vkBeginCommandBuffer(commands, &begin));
    part->api.vkCmdCopyBuffer(commands, staged->buffer, to->buffer, 1, &copy);
    part->api.vkCmdPipelineBarrier(commands, VK_STAGE_TRANSFER, VK_STAGE_COMPUTE | VK_STAGE_TRANSFER, 0, 1, &barrier, 0, NULL, 0, NULL);
    TRY(vkEndCommandBuffer(commands));
    if (vulkan_submit(part, commands)) return -1;
  }
  return 0;
}

static void free_bank(gpu_part *part, bank *freed) {
  if (freed->buffer) part->api.vkDestroyBuffer(part->device, freed->buffer, NULL);
  if (freed->memory) part->api.vkFreeMemory(part->device, freed->memory, NULL);
}

static int fill_constants(gpu_part *part) {
  const uint32_t visible[] = {VK_MEMORY_HOST_VISIBLE | VK_MEMORY_HOST_COHERENT, 0};
  const room *constants = &part->rooms[PLAN_CONSTANT];
  bank staged = {.end = STAGED};
  int failed = 0;
  for (uint32_t i = 0; i < constants->count && !failed; ++i) {
    const bank *to = &constants->banks[i];
    if (to->mapped && to->coherent) {
      memcpy(to->mapped, plan.constants + to->begin, to->end - to->begin);
      continue;
    }
    if (!staged.buffer) failed = make_bank(part, &staged, visible, "constants on their way");
    if (!failed) failed = upload(part, to, &staged);
  }
  if (!part->hangs) free_bank(part, &staged);
  return failed;
}

int vulkan_make_memory(gpu_part *part) {
  const uint32_t local[] = {VK_MEMORY_DEVICE_LOCAL, 0}, visible = VK_MEMORY_HOST_VISIBLE | VK_MEMORY_HOST_COHERENT;
  const uint32_t shared[] = {VK_MEMORY_DEVICE_LOCAL | visible, VK_MEMORY_DEVICE_LOCAL, 0}, inputs[] = {VK_MEMORY_DEVICE_LOCAL | visible, visible, 0};
  const uint32_t outputs[] = {visible | VK_MEMORY_HOST_CACHED, VK_MEMORY_HOST_VISIBLE | VK_MEMORY_HOST_CACHED, visible, 0};
  part->starts = calloc(plan_api.inputs + plan_api.outputs + 1, sizeof *part->starts);
  if (!part->starts) return vulkan_refuse(part, "no memory");
  if (make_room(part, PLAN_ARENA, local, "values between kernels")) return -1;
  if (make_room(part, PLAN_CONSTANT, part->is.type == VK_DEVICE_TYPE_DISCRETE ? local : shared, "constants")) return -1;
  if (make_ends(part, PLAN_INPUT, inputs, "inputs") || make_ends(part, PLAN_OUTPUT, outputs, "outputs")) return -1;
  return fill_constants(part);
}

void vulkan_free_memory(gpu_part *part) {
  for (int place = PLAN_INPUT; place <= PLAN_ARENA; ++place) {
    for (uint32_t i = 0; i < part->rooms[place].count; ++i) free_bank(part, &part->rooms[place].banks[i]);
    free(part->rooms[place].banks);
  }
  free(part->starts);
}
