#include "vulkan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Loaders, then drivers that work without one. */
static const char *const NAMES[] = {"libvulkan.so.1", "libvulkan.so", "libGLX_nvidia.so.0", "libEGL_nvidia.so.0"};

typedef void (*(*get_proc)(VkInstance, const char *))(void);

static int fail(char *why, size_t size, const char *name, VkResult result) {
  if (result) snprintf(why, size, "%s: error %d", name, result);
  else snprintf(why, size, "no %s: Vulkan is older than 1.1", name);
  return -1;
}

/* Make an instance with what a library has. */
static int make_instance(vulkan *found, get_proc get, char *why, size_t size) {
#define VULKAN_RESOLVE(result_, name, parameters) \
  found->name = (result_(*) parameters)get(found->instance, #name); \
  if (!found->name) return fail(why, size, #name, 0);
  VULKAN_GLOBAL(VULKAN_RESOLVE)
  found->vkEnumerateInstanceVersion(&found->version);
  const VkApplicationInfo application = {.type = VK_APPLICATION_INFO, .application = "tvmflow", .api_version = VK_API_VERSION_1_1};
  const VkInstanceCreateInfo info = {.type = VK_INSTANCE_CREATE_INFO, .application = &application};
  VkResult result = found->vkCreateInstance(&info, NULL, &found->instance);
  if (result != VK_SUCCESS) return fail(why, size, "vkCreateInstance", result);
  VULKAN_FUNCTIONS(VULKAN_RESOLVE)
#undef VULKAN_RESOLVE
  return 0;
}

int vulkan_load(vulkan *found, const char *named, char *why, size_t size) {
  snprintf(why, size, "no library of Vulkan");
  for (size_t i = 0; i < (named ? 1 : sizeof NAMES / sizeof *NAMES); ++i) {
    const char *name = named ? named : NAMES[i];
    get_proc get = NULL;
    memset(found, 0, sizeof *found);
    found->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!found->library) continue;
    *(void **)&get = dlsym(found->library, "vkGetInstanceProcAddr");
    if (!get) *(void **)&get = dlsym(found->library, "vk_icdGetInstanceProcAddr");
    snprintf(found->name, sizeof found->name, "%s", strrchr(name, '/') ? strrchr(name, '/') + 1 : name);
    if (get && !make_instance(found, get, why, size)) return 0;
  }
  return -1;
}
