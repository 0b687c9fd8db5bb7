/* Load the shaders of a network on Vulkan: their requirements, their pipelines, and the file that caches pipelines between starts. */
#include "vulkan_state.h"
#include "program_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- what SPIR-V says of itself; numbers are those of its specification -- */

enum {
  SPIRV_MAGIC = 0x07230203, SPIRV_HEADER = 5,
  OP_CAPABILITY = 17, OP_TYPE_POINTER = 32, OP_VARIABLE = 59, OP_DECORATE = 71, OP_MEMBER_DECORATE = 72,
  DECORATION_NON_WRITABLE = 24, DECORATION_BINDING = 33, STORAGE_UNIFORM_CONSTANT = 0
};

typedef struct {
  const uint32_t *words;
  size_t count;
} spirv;

/* The next instruction `operation` after `at` (NULL: from the start) of at least `least` words, whose word `place` is `value`; NULL: none. */
static const uint32_t *next_of(const spirv *code, const uint32_t *at, uint32_t operation, uint32_t least, uint32_t place, uint32_t value) {
  const uint32_t *end = code->words + code->count;
  at = at ? at + (*at >> 16) : code->words + SPIRV_HEADER;
  for (; at < end && *at >> 16 && *at >> 16 <= (size_t)(end - at); at += *at >> 16)
    if ((*at & 0xffff) == operation && *at >> 16 >= least && (!place || at[place] == value)) return at;
  return NULL;
}

/* Whether a variable of a block of storage is marked as one that is only read. */
static int is_read_only(const spirv *code, uint32_t variable) {
  for (const uint32_t *at = NULL; (at = next_of(code, at, OP_DECORATE, 3, 1, variable));)
    if (at[2] == DECORATION_NON_WRITABLE) return 1;
  const uint32_t *declared = next_of(code, NULL, OP_VARIABLE, 4, 2, variable);
  const uint32_t *pointer = declared ? next_of(code, NULL, OP_TYPE_POINTER, 4, 1, declared[1]) : NULL;
  for (const uint32_t *at = NULL; pointer && (at = next_of(code, at, OP_MEMBER_DECORATE, 4, 1, pointer[3]));)
    if (at[3] == DECORATION_NON_WRITABLE) return 1;
  return 0;
}

static int is_texel_buffer(const spirv *code, uint32_t variable) {
  const uint32_t *declared = next_of(code, NULL, OP_VARIABLE, 4, 2, variable);
  return declared && declared[3] == STORAGE_UNIFORM_CONSTANT;
}

static uint32_t need_for(uint32_t capability) {
  switch (capability) {
    case 1: /* Shader; buffers of texels; the least of subgroups: what every device has */
    case 46:
    case 61: return 0;
    case 9: return NEEDS_FLOAT16;
    case 11: return NEEDS_INT64;
    case 22: return NEEDS_INT16;
    case 39: return NEEDS_INT8;
    case 4433: return NEEDS_STORAGE16;
    case 4448: return NEEDS_STORAGE8;
    case 6018: /* dot products of words */
    case 6019: return NEEDS_DOT;
    case 63: return NEEDS_SUMS;
    default: return NEEDS_UNKNOWN;
  }
}

static int read_facts(const spirv *code, program_facts *facts) {
  if (code->count < SPIRV_HEADER || code->words[0] != SPIRV_MAGIC) return -1;
  for (const uint32_t *at = NULL; (at = next_of(code, at, OP_CAPABILITY, 2, 0, 0));) facts->needs |= need_for(at[1]);
  for (const uint32_t *at = NULL; (at = next_of(code, at, OP_DECORATE, 4, 2, DECORATION_BINDING));) {
    const uint32_t argument = at[3] % SINGLE_TEXELS, texels = is_texel_buffer(code, at[1]) != 0, single = at[3] >= SINGLE_TEXELS;
    if (argument >= MOST_ARGUMENTS || at[3] >= 2 * SINGLE_TEXELS || single > texels) return -1;
    facts->texels |= texels << argument;
    facts->single |= single << argument;
    if (!texels && !is_read_only(code, at[1])) facts->written |= 1u << argument;
  }
  return 0;
}

static int check_needs(gpu_part *part, const char *name, uint32_t needs) {
  static const char *const NAMES[] = {"float16", "int8", "int16", "int64", "values of 16 bits in memory", "values of 8 bits in memory", "integer dot products", "sums over subgroups", "a feature that is not known here"};
  const uint32_t lacks = needs & ~part->has;
  for (uint32_t i = 0; i < sizeof NAMES / sizeof *NAMES; ++i)
    if (lacks >> i & 1) return vulkan_refuse(part, "%.100s lacks what kernel %.100s needs: %s", part->is.name, name, NAMES[i]);
  return 0;
}

static int check_sizes(gpu_part *part, const plan_gpu_kernel *kernel, uint32_t arguments) {
  uint64_t threads = 1;
  for (uint32_t i = 0; i < 3; ++i) {
    if (kernel->groups[i] > vulkan_limit(part, VK_MAX_GROUP_COUNT + 4 * i))
      return vulkan_refuse(part, "kernel %.100s has %u work-groups along an axis, %.100s allows %u", kernel->name, kernel->groups[i], part->is.name, vulkan_limit(part, VK_MAX_GROUP_COUNT + 4 * i));
    if (kernel->group_size[i] > vulkan_limit(part, VK_MAX_GROUP_SIZES + 4 * i)) threads = UINT32_MAX;
    if (kernel->group_size[i]) threads *= kernel->group_size[i];
  }
  if (threads > vulkan_limit(part, VK_MAX_GROUP_SIZE))
    return vulkan_refuse(part, "kernel %.100s has work-groups of %ux%ux%u, too large for %.100s", kernel->name, kernel->group_size[0], kernel->group_size[1], kernel->group_size[2], part->is.name);
  if (arguments > MOST_ARGUMENTS || arguments > vulkan_limit(part, VK_MAX_STAGE_BUFFERS))
    return vulkan_refuse(part, "kernel %.100s has %u arguments, too many for %.100s", kernel->name, arguments, part->is.name);
  return 0;
}

/* -- pipelines -- */

static int make_layout(gpu_part *part, uint32_t arguments, const program_facts *facts, uint32_t *found) {
  VkDescriptorSetLayoutBinding bindings[MOST_ARGUMENTS];
  for (*found = 0; *found < part->layout_count; ++*found)
    if (part->layouts[*found].arguments == arguments && part->layouts[*found].texels == facts->texels && part->layouts[*found].single == facts->single) return 0;
  program_layout *made = &part->layouts[part->layout_count++];
  made->arguments = arguments;
  made->texels = facts->texels;
  made->single = facts->single;
  for (uint32_t i = 0; i < arguments; ++i) {
    const uint32_t kind = facts->texels >> i & 1 ? VK_DESCRIPTOR_TYPE_TEXEL_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    bindings[i] = (VkDescriptorSetLayoutBinding){i + (facts->single >> i & 1) * SINGLE_TEXELS, kind, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
  }
  const VkDescriptorSetLayoutCreateInfo set = {.type = VK_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .count = arguments, .bindings = bindings};
  TRY(vkCreateDescriptorSetLayout(part->device, &set, NULL, &made->set));
  const VkPipelineLayoutCreateInfo whole = {.type = VK_PIPELINE_LAYOUT_CREATE_INFO, .set_count = 1, .sets = &made->set};
  TRY(vkCreatePipelineLayout(part->device, &whole, NULL, &made->whole));
  return 0;
}

static int make_pipeline(gpu_part *part, const plan_gpu_kernel *kernel, VkHandle layout, VkHandle *made) {
  VkHandle module = 0;
  const VkShaderModuleCreateInfo shader = {.type = VK_SHADER_MODULE_CREATE_INFO, .size = kernel->code_size, .code = kernel->code};
  TRY(vkCreateShaderModule(part->device, &shader, NULL, &module));
  const VkComputePipelineCreateInfo info = {
      .type = VK_COMPUTE_PIPELINE_CREATE_INFO, .layout = layout, .base_index = -1,
      .stage = {.type = VK_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module, .name = "main"}};
  const VkResult result = part->api.vkCreateComputePipelines(part->device, part->cache, 1, &info, NULL, made);
  part->api.vkDestroyShaderModule(part->device, module, NULL);
  return result == VK_SUCCESS ? 0 : vulkan_refuse(part, "%.100s does not compile kernel %.100s: error %d", part->is.name, kernel->name, result);
}

static int same_code(uint32_t a, uint32_t b) {
  const plan_gpu_kernel *first = &plan.gpu->kernels[a], *second = &plan.gpu->kernels[b];
  if (first->code_size != second->code_size || plan.steps[a].count != plan.steps[b].count) return 0;
  return first->code == second->code || !memcmp(first->code, second->code, first->code_size);
}

static int make_program(gpu_part *part, uint32_t step) {
  const plan_gpu_kernel *kernel = &plan.gpu->kernels[step];
  const spirv code = {kernel->code, kernel->code_size / 4};
  const uint32_t arguments = plan.steps[step].count;
  if (check_sizes(part, kernel, arguments)) return -1;
  for (uint32_t i = 0; i < step; ++i)
    if (same_code(i, step)) {
      part->facts[step] = part->facts[i];
      part->pipelines[step] = part->pipelines[i];
      part->layout_of[step] = part->layout_of[i];
      return 0;
    }
  if (read_facts(&code, &part->facts[step])) return vulkan_refuse(part, "kernel %.100s is no SPIR-V: the library is damaged", kernel->name);
  if (check_needs(part, kernel->name, part->facts[step].needs)) return -1;
  if (make_layout(part, arguments, &part->facts[step], &part->layout_of[step])) return -1;
  return make_pipeline(part, kernel, part->layouts[part->layout_of[step]].whole, &part->pipelines[step]);
}

/* -- what is kept from one start to the next -- */

/* What the driver's bytes begin with. */
typedef struct {
  uint32_t size, version, vendor, device;
  uint8_t uuid[16];
} cache_header;

#define DEVICE_TEXT 256

/* Device and driver, as a text. */
static void name_device(const gpu_part *part, char *text) {
  int used = snprintf(text, DEVICE_TEXT, "vulkan %u %u %u %u ", part->is.vendor, part->is.device, part->is.driver_version, part->is.api_version);
  for (int i = 0; i < 16; ++i) used += snprintf(text + used, DEVICE_TEXT - (size_t)used, "%02x%02x", part->driver_uuid[i], part->is.cache_uuid[i]);
}

/* The codes of all kernels, one behind the other, to be freed. */
static unsigned char *all_codes(size_t *size) {
  *size = 0;
  for (uint32_t i = 0; i < plan.step_count; ++i) *size += plan.gpu->kernels[i].code_size;
  unsigned char *codes = malloc(*size + 1), *at = codes;
  for (uint32_t i = 0; codes && i < plan.step_count; at += plan.gpu->kernels[i++].code_size) memcpy(at, plan.gpu->kernels[i].code, plan.gpu->kernels[i].code_size);
  return codes;
}

/* The driver's bytes that were kept, to be freed; NULL where there are none of this device. */
static unsigned char *read_kept(const gpu_part *part, const program_key *key, size_t *size) {
  cache_header of;
  unsigned char *bytes = program_cache_read(key, size);
  if (!bytes || *size < sizeof of) return free(bytes), NULL;
  memcpy(&of, bytes, sizeof of);
  if (of.version == 1 && of.vendor == part->is.vendor && of.device == part->is.device && !memcmp(of.uuid, part->is.cache_uuid, sizeof of.uuid)) return bytes;
  return free(bytes), NULL;
}

static void store_in_cache(const gpu_part *part, const program_key *key) {
  size_t size = 0;
  if (part->api.vkGetPipelineCacheData(part->device, part->cache, &size, NULL) || !size) return;
  void *bytes = malloc(size);
  if (bytes && !part->api.vkGetPipelineCacheData(part->device, part->cache, &size, bytes)) program_cache_write(key, bytes, size);
  free(bytes);
}

/* Make the driver's cache of bytes that were kept, or empty. Returns -1, or whether it is empty. */
static int make_cache(gpu_part *part, const void *bytes, size_t size) {
  VkPipelineCacheCreateInfo info = {.type = VK_PIPELINE_CACHE_CREATE_INFO, .size = size, .data = bytes};
  if (size && part->api.vkCreatePipelineCache(part->device, &info, NULL, &part->cache) == VK_SUCCESS) return 0;
  info.size = 0;
  TRY(vkCreatePipelineCache(part->device, &info, NULL, &part->cache));
  return 1;
}

static int make_all(gpu_part *part, const program_key *key) {
  size_t size = 0;
  unsigned char *bytes = read_kept(part, key, &size);
  const int is_empty = make_cache(part, bytes, bytes ? size : 0);
  free(bytes);
  if (is_empty < 0) return -1;
  for (uint32_t i = 0; i < plan.step_count; ++i)
    if (make_program(part, i)) return -1;
  if (is_empty && key->folder) store_in_cache(part, key);
  return 0;
}

int vulkan_make_programs(gpu_part *part, const char *folder) {
  char device[DEVICE_TEXT];
  program_key key = {.folder = folder, .device = device};
  part->pipelines = calloc(plan.step_count + 1, sizeof *part->pipelines);
  part->facts = calloc(plan.step_count + 1, sizeof *part->facts);
  part->layouts = calloc(plan.step_count + 1, sizeof *part->layouts);
  part->layout_of = calloc(plan.step_count + 1, sizeof *part->layout_of);
  unsigned char *codes = all_codes(&key.code_size);
  if (!part->pipelines || !part->facts || !part->layouts || !part->layout_of || !codes) return free(codes), vulkan_refuse(part, "no memory");
  name_device(part, device);
  key.code = codes;
  const int failed = make_all(part, &key);
  free(codes);
  return failed;
}

void vulkan_free_programs(gpu_part *part) {
  for (uint32_t i = 0; part->pipelines && i < plan.step_count; ++i) {
    int shared = 0;
    for (uint32_t before = 0; before < i && !shared; ++before) shared = part->pipelines[before] == part->pipelines[i];
    if (part->pipelines[i] && !shared) part->api.vkDestroyPipeline(part->device, part->pipelines[i], NULL);
  }
  for (uint32_t i = 0; i < part->layout_count; ++i) {
    if (part->layouts[i].whole) part->api.vkDestroyPipelineLayout(part->device, part->layouts[i].whole, NULL);
    if (part->layouts[i].set) part->api.vkDestroyDescriptorSetLayout(part->device, part->layouts[i].set, NULL);
  }
  if (part->cache) part->api.vkDestroyPipelineCache(part->device, part->cache, NULL);
  free(part->pipelines);
  free(part->facts);
  free(part->layouts);
  free(part->layout_of);
}
