/* Run a network on Vulkan: its commands are recorded once and submitted for each run. */
#define _GNU_SOURCE
#include "vulkan_state.h"

#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- recording -- */

static void barrier(const gpu_part *part, VkCommandBuffer commands, uint32_t to_stages, uint32_t to_access) {
  const VkMemoryBarrier between = {.type = VK_MEMORY_BARRIER, .source = VK_ACCESS_SHADER_WRITE | VK_ACCESS_TRANSFER_WRITE, .destination = to_access};
  part->api.vkCmdPipelineBarrier(commands, VK_STAGE_COMPUTE | VK_STAGE_TRANSFER, to_stages, 0, 1, &between, 0, NULL, 0, NULL);
}

static touched range_of(uint32_t at, int written) {
  const plan_value *value = &plan.values[at];
  return (touched){value->place, value->index, value->offset, value->offset + vulkan_size_of(value), written};
}

static int overlaps_write(const touched *a, const touched *b) {
  if (a->place != b->place || !(a->written || b->written)) return 0;
  if ((a->place == PLAN_INPUT || a->place == PLAN_OUTPUT) && a->index != b->index) return 0;
  return a->begin < b->end && b->begin < a->end;
}

/* Have commands wait for those before them that write what these read or write, or read what these write. */
static void order_accesses(gpu_part *part, VkCommandBuffer commands, const touched *ranges, uint32_t count) {
  int waits = 0;
  for (uint32_t i = 0; i < part->touched_count && !waits; ++i)
    for (uint32_t k = 0; k < count && !waits; ++k) waits = overlaps_write(&part->touched[i], &ranges[k]);
  if (waits) {
    barrier(part, commands, VK_STAGE_COMPUTE | VK_STAGE_TRANSFER, VK_ACCESS_SHADER | VK_ACCESS_TRANSFER);
    part->touched_count = 0;
  }
  memcpy(part->touched + part->touched_count, ranges, count * sizeof *ranges);
  part->touched_count += count;
}

static void record_step(gpu_part *part, VkCommandBuffer commands, uint32_t at) {
  const plan_step *step = &plan.steps[at];
  const plan_gpu_kernel *kernel = &plan.gpu->kernels[at];
  touched ranges[MOST_ARGUMENTS];
  for (uint32_t i = 0; i < step->count; ++i) ranges[i] = range_of(plan.arguments[step->arguments + i], part->facts[at].written >> i & 1);
  order_accesses(part, commands, ranges, step->count);
  part->api.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, part->pipelines[at]);
  part->api.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, part->layouts[part->layout_of[at]].whole, 0, 1, &part->sets[at], 0, NULL);
  part->api.vkCmdDispatch(commands, kernel->groups[0], kernel->groups[1], kernel->groups[2]);
}

static void record_copy(gpu_part *part, VkCommandBuffer commands, const plan_copy *copy) {
  const touched ranges[] = {range_of(copy->from, 0), range_of(copy->to, 1)};
  VkBufferCopy region = {.size = copy->size};
  const bank *from = vulkan_bank_of(part, &plan.values[copy->from], &region.source);
  const bank *to = vulkan_bank_of(part, &plan.values[copy->to], &region.destination);
  order_accesses(part, commands, ranges, 2);
  part->api.vkCmdCopyBuffer(commands, from->buffer, to->buffer, 1, &region);
}

/* Record all steps. timed: with a timestamp before the first and after each, and no two at once. */
static int record(gpu_part *part, VkCommandBuffer *commands, int timed) {
  const VkCommandBufferAllocateInfo wanted = {.type = VK_COMMAND_BUFFER_ALLOCATE_INFO, .pool = part->command_pool, .count = 1};
  const VkCommandBufferBeginInfo begin = {.type = VK_COMMAND_BUFFER_BEGIN_INFO};
  VkCommandBuffer made;
  TRY(vkAllocateCommandBuffers(part->device, &wanted, &made));
  TRY(vkBeginCommandBuffer(made, &begin));
  part->touched_count = 0;
  if (timed) {
    part->api.vkCmdResetQueryPool(made, part->queries, 0, plan.step_count + 1);
    part->api.vkCmdWriteTimestamp(made, VK_STAGE_BOTTOM, part->queries, 0);
  }
  for (uint32_t i = 0; i < plan.step_count; ++i) {
    record_step(part, made, i);
    if (!timed) continue;
    barrier(part, made, VK_STAGE_COMPUTE | VK_STAGE_TRANSFER, VK_ACCESS_SHADER | VK_ACCESS_TRANSFER);
    part->api.vkCmdWriteTimestamp(made, VK_STAGE_BOTTOM, part->queries, i + 1);
    part->touched_count = 0;
  }
  for (uint32_t i = 0; i < plan.copy_count; ++i) record_copy(part, made, &plan.copies[i]);
  barrier(part, made, VK_STAGE_HOST, VK_ACCESS_HOST_READ);
  TRY(vkEndCommandBuffer(made));
  *commands = made;
  return 0;
}

/* -- making and freeing -- */

/* The format of texels of one or four values; 0: there is none. */
static uint32_t format_of(const plan_value *value, int single) {
  enum { INTEGER, UNSIGNED, FLOAT }; /* codes of DLPack */
  switch (value->code << 8 | value->bits) {
    case FLOAT << 8 | 32: return single ? VK_FORMAT_R32_SFLOAT : VK_FORMAT_R32G32B32A32_SFLOAT;
    case FLOAT << 8 | 16: return single ? VK_FORMAT_R16_SFLOAT : VK_FORMAT_R16G16B16A16_SFLOAT;
    case INTEGER << 8 | 32: return single ? VK_FORMAT_R32_SINT : VK_FORMAT_R32G32B32A32_SINT;
    case INTEGER << 8 | 8: return single ? VK_FORMAT_R8_SINT : VK_FORMAT_R8G8B8A8_SINT;
    case UNSIGNED << 8 | 8: return single ? VK_FORMAT_R8_UINT : VK_FORMAT_R8G8B8A8_UINT;
    default: return 0;
  }
}

static int bind_texels(gpu_part *part, uint32_t at, uint32_t i, const plan_value *value, const VkDescriptorBufferInfo *bound) {
  const int single = part->facts[at].single >> i & 1;
  const uint64_t texel = (uint64_t)value->bits / 8 * (single ? 1 : 4), texels = texel ? vulkan_size_of(value) / texel : 0;
  VkHandle *view = &part->views[plan.steps[at].arguments + i];
  const VkBufferViewCreateInfo info = {
      .type = VK_BUFFER_VIEW_CREATE_INFO, .buffer = bound->buffer, .format = format_of(value, single), .offset = bound->offset, .range = texels * texel};
  const VkWriteDescriptorSet write = {
      .type = VK_WRITE_DESCRIPTOR_SET, .set = part->sets[at], .binding = i + (single ? SINGLE_TEXELS : 0), .count = 1, .descriptor = VK_DESCRIPTOR_TYPE_TEXEL_BUFFER, .view = view};
  if (!info.format) return vulkan_refuse(part, "an argument of kernel %.100s cannot be read as texels", plan.steps[at].name);
  if (!texels || texels > vulkan_limit(part, VK_MAX_TEXELS))
    return vulkan_refuse(part, "an argument of kernel %.100s has %llu texels; %.100s allows 1 to %u", plan.steps[at].name, (unsigned long long)texels, part->is.name,
                         vulkan_limit(part, VK_MAX_TEXELS));
  TRY(vkCreateBufferView(part->device, &info, NULL, view));
  part->api.vkUpdateDescriptorSets(part->device, 1, &write, 0, NULL);
  return 0;
}

static int bind_argument(gpu_part *part, uint32_t at, uint32_t i) {
  const plan_step *step = &plan.steps[at];
  const plan_value *value = &plan.values[plan.arguments[step->arguments + i]];
  VkDescriptorBufferInfo bound = {.range = (vulkan_size_of(value) + 3) / 4 * 4}; /* banks are padded */
  const bank *in = vulkan_bank_of(part, value, &bound.offset);
  const VkWriteDescriptorSet write = {
      .type = VK_WRITE_DESCRIPTOR_SET, .set = part->sets[at], .binding = i, .count = 1, .descriptor = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .buffer = &bound};
  bound.buffer = in->buffer;
  if (bound.offset % vulkan_limit(part, VK_MIN_STORAGE_ALIGNMENT)) return vulkan_refuse(part, "an argument of kernel %.100s is not aligned", step->name);
  if (part->facts[at].texels >> i & 1) return bind_texels(part, at, i, value, &bound);
  if (!bound.range || bound.range > vulkan_limit(part, VK_MAX_STORAGE_RANGE))
    return vulkan_refuse(part, "an argument of kernel %.100s has %llu bytes; %.100s allows 1 to %u", step->name, (unsigned long long)bound.range, part->is.name,
                         vulkan_limit(part, VK_MAX_STORAGE_RANGE));
  part->api.vkUpdateDescriptorSets(part->device, 1, &write, 0, NULL);
  return 0;
}

static int bind_step(gpu_part *part, uint32_t at) {
  const VkDescriptorSetAllocateInfo wanted = {
      .type = VK_DESCRIPTOR_SET_ALLOCATE_INFO, .pool = part->descriptors, .count = 1, .layouts = &part->layouts[part->layout_of[at]].set};
  TRY(vkAllocateDescriptorSets(part->device, &wanted, &part->sets[at]));
  for (uint32_t i = 0; i < plan.steps[at].count; ++i)
    if (bind_argument(part, at, i)) return -1;
  return 0;
}

static int bind_steps(gpu_part *part) {
  const VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, plan.argument_count + 1}, {VK_DESCRIPTOR_TYPE_TEXEL_BUFFER, plan.argument_count + 1}};
  const VkDescriptorPoolCreateInfo pool = {.type = VK_DESCRIPTOR_POOL_CREATE_INFO, .sets = plan.step_count + 1, .size_count = 2, .sizes = sizes};
  part->sets = calloc(plan.step_count + 1, sizeof *part->sets);
  part->views = calloc(plan.argument_count + 1, sizeof *part->views);
  part->touched = calloc(plan.argument_count + 2 * plan.copy_count + 1, sizeof *part->touched);
  if (!part->sets || !part->views || !part->touched) return vulkan_refuse(part, "no memory");
  TRY(vkCreateDescriptorPool(part->device, &pool, NULL, &part->descriptors));
  for (uint32_t i = 0; i < plan.step_count; ++i)
    if (bind_step(part, i)) return -1;
  return 0;
}

static int make_all(gpu_part *part, const tvmflow_gpu *wanted) {
  if (vulkan_open_device(part, wanted)) return -1;
  const VkCommandPoolCreateInfo pool = {.type = VK_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_RESETS, .family = part->family};
  const VkFenceCreateInfo fence = {.type = VK_FENCE_CREATE_INFO};
  TRY(vkCreateCommandPool(part->device, &pool, NULL, &part->command_pool));
  TRY(vkCreateFence(part->device, &fence, NULL, &part->fence));
  if (vulkan_make_memory(part) || vulkan_make_programs(part, wanted->cache) || bind_steps(part)) return -1;
  return record(part, &part->commands, 0);
}

static void destroy_device(gpu_part *part) {
  const vulkan *api = &part->api;
  if (part->queries) api->vkDestroyQueryPool(part->device, part->queries, NULL);
  if (part->fence) api->vkDestroyFence(part->device, part->fence, NULL);
  if (part->command_pool) api->vkDestroyCommandPool(part->device, part->command_pool, NULL);
  if (part->descriptors) api->vkDestroyDescriptorPool(part->device, part->descriptors, NULL);
  for (uint32_t i = 0; part->views && i < plan.argument_count; ++i)
    if (part->views[i]) api->vkDestroyBufferView(part->device, part->views[i], NULL);
  vulkan_free_programs(part);
  vulkan_free_memory(part);
  api->vkDestroyDevice(part->device, NULL);
}

/* What hangs stays: the GPU may still write to the memory that it was given. */
static void close_part(gpu_part *part) {
  if (!part) return;
  if (part->hangs && part->api.vkWaitForFences(part->device, 1, &part->fence, 1, GPU_TIMEOUT_NS) == VK_TIMEOUT) return;
  if (part->device) destroy_device(part);
  if (part->api.instance) part->api.vkDestroyInstance(part->api.instance, NULL);
  free(part->sets);
  free(part->views);
  free(part->touched);
  free(part);
}

static int open_part(const tvmflow_gpu *wanted, gpu_part **made, char *why) {
  gpu_part *part = calloc(1, sizeof *part);
  if (!part) return strcpy(why, "no memory"), -1;
  part->why = why;
  if (make_all(part, wanted)) return close_part(part), -1;
  *made = part;
  return 0;
}

/* -- running -- */

static int make_queries(gpu_part *part) {
  const VkQueryPoolCreateInfo info = {.type = VK_QUERY_POOL_CREATE_INFO, .query = VK_QUERY_TYPE_TIMESTAMP, .count = plan.step_count + 1};
  if (part->timed) return 0;
  if (!part->queries) TRY(vkCreateQueryPool(part->device, &info, NULL, &part->queries));
  return record(part, &part->timed, 1);
}

/* Add what each step took in the last run. */
static int read_times(gpu_part *part, uint64_t *nanoseconds) {
  const uint64_t mask = part->timestamp_bits >= 64 ? UINT64_MAX : ((uint64_t)1 << part->timestamp_bits) - 1;
  const uint32_t count = plan.step_count + 1;
  float period;
  memcpy(&period, (const char *)part->is.limits + VK_TIMESTAMP_PERIOD, sizeof period);
  uint64_t *times = calloc(count, sizeof *times);
  if (!times) return vulkan_refuse(part, "no memory");
  const VkResult result =
      part->api.vkGetQueryPoolResults(part->device, part->queries, 0, count, count * sizeof *times, times, sizeof *times, VK_QUERY_RESULT_64_AND_WAIT);
  for (uint32_t i = 0; i + 1 < count && result == VK_SUCCESS; ++i) nanoseconds[i] += (uint64_t)((double)((times[i + 1] - times[i]) & mask) * period);
  free(times);
  return result == VK_SUCCESS ? 0 : vulkan_failed(part, "vkGetQueryPoolResults", result);
}

static int fetch_outputs(gpu_part *part, void *const *outputs) {
  const bank *from = part->rooms[PLAN_OUTPUT].banks;
  const VkMappedMemoryRange all = {.type = VK_MAPPED_MEMORY_RANGE, .memory = from->memory, .size = UINT64_MAX};
  if (!from->coherent) TRY(vkInvalidateMappedMemoryRanges(part->device, 1, &all));
  for (uint32_t i = 0; i < plan_api.outputs; ++i) memcpy(outputs[i], from->mapped + part->starts[plan_api.inputs + i], plan.outputs[i].size);
  return 0;
}

static int run(gpu_part *part, const void *const *inputs, void *const *outputs, uint64_t *nanoseconds, char *why) {
  const int timed = nanoseconds && part->timestamp_bits && plan.step_count;
  uint64_t begin = now_ns();
  part->why = why;
  if (*part->broken) return vulkan_refuse(part, "%s, and runs no more", part->broken);
  for (uint32_t i = 0; i < plan_api.inputs; ++i) memcpy(part->rooms[PLAN_INPUT].banks->mapped + part->starts[i], inputs[i], plan.inputs[i].size);
  if (nanoseconds) nanoseconds[plan.step_count + PROFILE_INPUTS] += now_ns() - begin;
  if (timed && make_queries(part)) return -1;
  if (vulkan_submit(part, timed ? part->timed : part->commands)) return -1;
  if (timed && read_times(part, nanoseconds)) return -1;
  begin = now_ns();
  if (fetch_outputs(part, outputs)) return -1;
  if (nanoseconds) nanoseconds[plan.step_count + PROFILE_OUTPUTS] += now_ns() - begin;
  return 0;
}

static void identify(const gpu_part *part, gpu_identity *found) {
  snprintf(found->device, GPU_NAME, "%s", part->is.name);
  snprintf(found->driver, GPU_NAME, "%s", part->driver);
  snprintf(found->version, GPU_NAME, "%u", part->is.driver_version);
}

const gpu_functions gpu_vulkan = {open_part, run, close_part, identify};
