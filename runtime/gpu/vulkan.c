#include "vulkan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const NAMES[] = {"libvulkan.so.1", "libvulkan.so"};

typedef void (*(*get_proc)(VkInstance, const char *))(void);

static int failed(char *why, size_t size, const char *text, const char *name, int result) {
  snprintf(why, size, text, name, result);
  return -1;
}

static int open_library(vulkan *found, const char *name, get_proc *get) {
  found->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!found->library) return -1;
  *(void **)get = dlsym(found->library, "vkGetInstanceProcAddr");
  snprintf(found->name, sizeof found->name, "%s", strrchr(name, '/') ? strrchr(name, '/') + 1 : name);
  return *get ? 0 : -1;
}

int vulkan_load(vulkan *found, const char *named, char *why, size_t size) {
  get_proc get = NULL;
  memset(found, 0, sizeof *found);
  int missing = -1;
  for (size_t i = 0; i < (named ? 1 : sizeof NAMES / sizeof *NAMES) && missing; ++i) missing = open_library(found, named ? named : NAMES[i], &get);
  if (missing) return failed(why, size, "no library of Vulkan%.0s%.0d", "", 0);
#define VULKAN_RESOLVE(result_, name, parameters) \
  found->name = (result_ (*) parameters)get(found->instance, #name); \
  if (!found->name) return failed(why, size, "no %s: Vulkan is older than 1.1%.0d", #name, 0);
  VULKAN_GLOBAL(VULKAN_RESOLVE)
  found->vkEnumerateInstanceVersion(&found->version);
  const VkApplicationInfo application = {.type = VK_APPLICATION_INFO, .application = "tvmflow", .api_version = VK_API_VERSION_1_1};
  const VkInstanceCreateInfo info = {.type = VK_INSTANCE_CREATE_INFO, .application = &application};
  VkResult result = found->vkCreateInstance(&info, NULL, &found->instance);
  if (result != VK_SUCCESS) return failed(why, size, "%s: error %d", "vkCreateInstance", result);
  VULKAN_FUNCTIONS(VULKAN_RESOLVE)
#undef VULKAN_RESOLVE
  return 0;
}
