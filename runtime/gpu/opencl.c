#include "opencl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* In the order in which phones have them; the first two provide their functions only after a vendor call. */
static const char *const NAMES[] = {
    "libOpenCL-pixel.so", "libOpenCL-car.so", "libOpenCL.so", "libOpenCL.so.1", "/vendor/lib64/libOpenCL.so", "/system/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so", "/vendor/lib64/egl/libGLES_mali.so", "/system/vendor/lib64/egl/libGLES_mali.so", "/system/vendor/lib64/libPVROCL.so",
    "/vendor/lib/libOpenCL.so", "/system/vendor/lib/libOpenCL.so", "/vendor/lib/egl/libGLES_mali.so", "/system/vendor/lib/libPVROCL.so"};

typedef void *(*pointer_of)(const char *name);

static void *function_of(void *library, pointer_of own, const char *name) {
  void *found = own ? own(name) : NULL;
  return found ? found : dlsym(library, name);
}

/* Returns the name of the first function that is missing, NULL for none. */
static const char *resolve(opencl *found, void *library) {
  void (*enable)(void);
  pointer_of own;
  *(void **)&enable = dlsym(library, "enableOpenCL");
  *(void **)&own = dlsym(library, "loadOpenCLPointer");
  if (enable) enable();
#define OPENCL_RESOLVE(result, name, parameters) \
  *(void **)&found->name = function_of(library, own, #name); \
  if (!found->name) return #name;
  OPENCL_FUNCTIONS(OPENCL_RESOLVE)
#undef OPENCL_RESOLVE
#define OPENCL_RESOLVE(result, name, parameters) *(void **)&found->name = function_of(library, own, #name);
  OPENCL_RECORDING_FUNCTIONS(OPENCL_RESOLVE)
#undef OPENCL_RESOLVE
  return NULL;
}

void *opencl_function(const opencl *loaded, const char *name) {
  pointer_of own;
  *(void **)&own = dlsym(loaded->library, "loadOpenCLPointer");
  return function_of(loaded->library, own, name);
}

int opencl_load(opencl *found, const char *named, char *why, size_t size) {
  memset(found, 0, sizeof *found);
  snprintf(why, size, "no library of OpenCL");
  for (size_t i = 0; i < (named ? 1 : sizeof NAMES / sizeof *NAMES); ++i) {
    const char *name = named ? named : NAMES[i];
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      if (named) snprintf(why, size, "%s", dlerror());
      continue;
    }
    const char *missing = resolve(found, library);
    if (!missing) {
      found->library = library;
      snprintf(found->name, sizeof found->name, "%s", name);
      return 0;
    }
    snprintf(why, size, "%s has no %s", name, missing);
    dlclose(library);
  }
  return -1;
}
