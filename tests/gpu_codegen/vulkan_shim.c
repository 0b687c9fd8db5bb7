/* A Vulkan loader in front of the real one, which REAL names: FAULT says what goes wrong with which call. */
#include "vulkan.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef void (*any)(void);
static any (*real)(VkInstance, const char *);
static int calls;

static VkResult lost(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkHandle fence) {
  (void)queue, (void)count, (void)infos, (void)fence;
  return VK_ERROR_DEVICE_LOST;
}

static VkResult (*wait)(VkDevice, uint32_t, const VkHandle *, uint32_t, uint64_t);

static VkResult lost_later(VkDevice device, uint32_t count, const VkHandle *fences, uint32_t all, uint64_t timeout) {
  wait(device, count, fences, all, timeout);
  return VK_ERROR_DEVICE_LOST;
}

static VkResult (*allocate)(VkDevice, const VkMemoryAllocateInfo *, const void *, VkHandle *);

/* The allocation of that number fails, and those after it. */
static VkResult full(VkDevice device, const VkMemoryAllocateInfo *info, const void *nothing, VkHandle *made) {
  return calls++ >= atoi(getenv("FAULT") + 4) ? -2 : allocate(device, info, nothing, made);
}

static VkResult refuse(VkDevice device, VkHandle cache, uint32_t count, const VkComputePipelineCreateInfo *infos, const void *nothing, VkHandle *made) {
  (void)device, (void)cache, (void)count, (void)infos, (void)nothing, (void)made;
  return -1;
}

static void (*properties)(VkPhysicalDevice, VkPhysicalDeviceProperties2 *);

/* The device has subgroups, whose threads do not sum. */
static void no_sums(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *all) {
  properties(device, all);
  for (VkPhysicalDeviceSubgroupProperties *one = all->next; one; one = one->next)
    if (one->type == VK_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES) one->operations = 1;
}

any vkGetInstanceProcAddr(VkInstance instance, const char *name) {
  const char *fault = getenv("FAULT");
  if (!real) *(void **)&real = dlsym(dlopen(getenv("REAL"), RTLD_NOW), "vkGetInstanceProcAddr");
  if (!strcmp(fault, "lost") && !strcmp(name, "vkQueueSubmit")) return (any)lost;
  if (!strcmp(fault, "lost later") && !strcmp(name, "vkWaitForFences")) {
    *(any *)&wait = real(instance, name);
    return (any)lost_later;
  }
  if (!strcmp(fault, "pipeline") && !strcmp(name, "vkCreateComputePipelines")) return (any)refuse;
  if (!strcmp(fault, "sums") && !strcmp(name, "vkGetPhysicalDeviceProperties2")) {
    *(any *)&properties = real(instance, name);
    return (any)no_sums;
  }
  if (!strcmp(fault, "old") && !strcmp(name, "vkCmdDispatch")) return NULL;
  if (!strncmp(fault, "full", 4) && !strcmp(name, "vkAllocateMemory")) {
    *(any *)&allocate = real(instance, name);
    return (any)full;
  }
  return real(instance, name);
}
