/* The native methods of tvmflow.Network, which checks sizes and buffers itself: open a library, and convert statuses
 * to exceptions. */
#include "tvmflow.h"

#include <dlfcn.h>
#include <jni.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The ABI of this process, by its name in bundles. */
#if defined __ANDROID__ && defined __aarch64__
#define ABI "arm64-v8a"
#elif defined __ANDROID__ && defined __arm__
#define ABI "armeabi-v7a"
#elif defined __ANDROID__ && defined __x86_64__
#define ABI "x86_64"
#elif defined __aarch64__
#define ABI "aarch64-linux-gnu"
#elif defined __arm__
#define ABI "armv7a-linux-gnueabihf"
#elif defined __x86_64__
#define ABI "x86_64-linux-gnu"
#else
#define ABI "another processor"
#endif

/* Before Android 10, variables of threads are freed by a function of the library when a thread ends, maybe after dlclose: it stays mapped. */
#ifdef __ANDROID__
#define KEEP RTLD_NODELETE
#else
#define KEEP 0
#endif

/* Members of tvmflow_api up to here are used: libraries of one app may be older or newer than this file. */
#define USED (offsetof(tvmflow_api, threads_of))

#define NAME(function) Java_tvmflow_Network_##function

typedef struct {
  void *library, *gpu_library;
  const tvmflow_api *api;
  tvmflow_instance *instance;
} network;

static network *network_of(jlong handle) { return (network *)(intptr_t)handle; }

static void throw_as(JNIEnv *env, const char *kind, const char *text) {
  jclass class = (*env)->FindClass(env, kind);
  if (class) (*env)->ThrowNew(env, class, text);
}

static void throw_status(JNIEnv *env, const network *net, tvmflow_status status) {
  const char *kind = status == TVMFLOW_BAD_ARGUMENT      ? "java/lang/IllegalArgumentException"
                     : status == TVMFLOW_NO_MEMORY       ? "java/lang/OutOfMemoryError"
                     : status == TVMFLOW_WRONG_PROCESSOR ? "java/lang/UnsupportedOperationException"
                                                         : "java/lang/IllegalStateException";
  const char *text = net->api->last_error();
  throw_as(env, kind, *text ? text : status == TVMFLOW_NO_MEMORY ? "no memory" : "bad argument");
}

static jbyteArray bytes_of(JNIEnv *env, const char *text) {
  jsize size = (jsize)strlen(text);
  jbyteArray found = (*env)->NewByteArray(env, size);
  if (found) (*env)->SetByteArrayRegion(env, found, 0, size, (const jbyte *)text);
  return found;
}

/* -- opening and closing -- */

static void free_network(network *net) {
  if (net->instance) net->api->destroy(net->instance);
  if (net->gpu_library) dlclose(net->gpu_library);
  if (net->library) dlclose(net->library);
  free(net);
}

/* Open a library and find its functions; return an error message, NULL on success. */
static const char *functions_of(const char *path, void **library, const tvmflow_api **api) {
  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | KEEP);
  if (!*library) return dlerror();
  void *symbol = dlsym(*library, "tvmflow_network");
  tvmflow_entry entry;
  if (!symbol) return "the library is no network";
  memcpy(&entry, &symbol, sizeof entry);
  *api = entry();
  return (*api)->abi_version != TVMFLOW_ABI_VERSION || (*api)->size < USED ? "the library was made for another tvmflow.h" : NULL;
}

/* gpu_path: of the library for a GPU, which is used until it fails, and ignored if it cannot be opened. */
static const char *open_library(network *net, const char *path, const tvmflow_options *options, const char *gpu_path, const char *programs) {
  const tvmflow_gpu gpu = {.size = sizeof gpu, .cache = programs};
  const tvmflow_api *other = NULL;
  const char *fault = functions_of(path, &net->library, &net->api);
  if (fault) return fault;
  if (!gpu_path) return net->api->create(options, &net->instance) ? net->api->last_error() : NULL;
  if (functions_of(gpu_path, &net->gpu_library, &other)) other = NULL;
  return net->api->create_with_gpu(options, other, &gpu, NULL, &net->instance) ? net->api->last_error() : NULL;
}

/* paths: of the library, of that for a GPU or NULL, and of a folder for its programs or NULL; zero-terminated. */
JNIEXPORT jlong JNICALL NAME(open)(JNIEnv *env, jclass self, jobjectArray paths, jint threads, jlong cpu_mask) {
  (void)self;
  const tvmflow_options options = {.threads = (uint32_t)threads, .cpu_mask = (uint64_t)cpu_mask};
  network *net = calloc(1, sizeof *net);
  jbyteArray held[3] = {NULL};
  const char *texts[3] = {NULL};
  for (int i = 0; i < 3; ++i) {
    held[i] = (*env)->GetObjectArrayElement(env, paths, i);
    if (held[i]) texts[i] = (const char *)(*env)->GetByteArrayElements(env, held[i], NULL);
  }
  const char *fault = net && texts[0] ? open_library(net, texts[0], &options, texts[1], texts[2]) : "no memory";
  if (fault) throw_as(env, "java/lang/IllegalArgumentException", fault); /* before dlclose, which may own the text */
  for (int i = 0; i < 3; ++i)
    if (texts[i]) (*env)->ReleaseByteArrayElements(env, held[i], (jbyte *)(uintptr_t)texts[i], JNI_ABORT);
  if (fault && net) free_network(net);
  return fault ? 0 : (jlong)(intptr_t)net;
}

JNIEXPORT jstring JNICALL NAME(abi)(JNIEnv *env, jclass self) {
  (void)self;
  return (*env)->NewStringUTF(env, ABI);
}

JNIEXPORT jobjectArray JNICALL NAME(processor)(JNIEnv *env, jclass self, jlong handle) {
  (void)self;
  const network *net = network_of(handle);
  tvmflow_processor is = {"", "", "", "", ""};
  net->api->processor(net->instance, &is);
  const char *const texts[] = {is.kind, is.reason, is.device, is.driver, is.version};
  jclass class = (*env)->FindClass(env, "[B");
  jobjectArray found = class ? (*env)->NewObjectArray(env, 5, class, NULL) : NULL;
  for (jsize i = 0; i < 5 && found; ++i) {
    jbyteArray text = bytes_of(env, texts[i]);
    if (!text) return NULL;
    (*env)->SetObjectArrayElement(env, found, i, text);
    (*env)->DeleteLocalRef(env, text);
  }
  return found;
}

JNIEXPORT void JNICALL NAME(close)(JNIEnv *env, jclass self, jlong handle) {
  (void)env, (void)self;
  free_network(network_of(handle));
}

/* -- information -- */

JNIEXPORT jbyteArray JNICALL NAME(name)(JNIEnv *env, jclass self, jlong handle) {
  (void)self;
  return bytes_of(env, network_of(handle)->api->network);
}

JNIEXPORT jint JNICALL NAME(count)(JNIEnv *env, jclass self, jlong handle, jboolean of_outputs) {
  (void)env, (void)self;
  return (jint)(of_outputs ? network_of(handle)->api->outputs : network_of(handle)->api->inputs);
}

JNIEXPORT jint JNICALL NAME(images)(JNIEnv *env, jclass self, jlong handle) {
  (void)env, (void)self;
  return (jint)network_of(handle)->api->images;
}

JNIEXPORT jobjectArray JNICALL NAME(labels)(JNIEnv *env, jclass self, jlong handle) {
  (void)self;
  const tvmflow_api *api = network_of(handle)->api;
  jclass class = (*env)->FindClass(env, "[B");
  jobjectArray found = class ? (*env)->NewObjectArray(env, (jsize)api->label_count, class, NULL) : NULL;
  for (uint32_t i = 0; i < api->label_count && found; ++i) {
    jbyteArray label = bytes_of(env, api->labels[i]);
    if (!label) return NULL;
    (*env)->SetObjectArrayElement(env, found, (jsize)i, label);
    (*env)->DeleteLocalRef(env, label);
  }
  return found;
}

JNIEXPORT jlongArray JNICALL NAME(tensor)(JNIEnv *env, jclass self, jlong handle, jboolean is_output, jint i, jobjectArray name,
                                          jlongArray numbers) {
  (void)self;
  const tvmflow_api *api = network_of(handle)->api;
  tvmflow_tensor info;
  if ((is_output ? api->output : api->input)((uint32_t)i, &info)) return NULL;
  const jlong facts[] = {info.dtype, (jlong)info.size};
  jbyteArray called = bytes_of(env, info.name);
  jlongArray shape = called ? (*env)->NewLongArray(env, info.ndim) : NULL;
  if (!shape) return NULL;
  (*env)->SetObjectArrayElement(env, name, 0, called);
  (*env)->SetLongArrayRegion(env, numbers, 0, 2, facts);
  for (jsize axis = 0; axis < info.ndim; ++axis) {
    const jlong size = info.shape[axis];
    (*env)->SetLongArrayRegion(env, shape, axis, 1, &size);
  }
  return shape;
}

/* Return the buckets of size i, and its name in name[0]; NULL if there is no such size. */
JNIEXPORT jlongArray JNICALL NAME(size)(JNIEnv *env, jclass self, jlong handle, jint i, jobjectArray name) {
  (void)self;
  tvmflow_size size;
  if (network_of(handle)->api->size_of((uint32_t)i, &size)) return NULL;
  jbyteArray called = bytes_of(env, size.name);
  jlongArray buckets = called ? (*env)->NewLongArray(env, (jsize)size.count) : NULL;
  if (!buckets) return NULL;
  (*env)->SetObjectArrayElement(env, name, 0, called);
  (*env)->SetLongArrayRegion(env, buckets, 0, (jsize)size.count, (const jlong *)size.buckets);
  return buckets;
}

/* Copy as many sizes as the network has. */
static void sizes_from(JNIEnv *env, const network *net, jlongArray sizes, int64_t *found) {
  (*env)->GetLongArrayRegion(env, sizes, 0, (jsize)net->api->sizes, (jlong *)found);
}

/* Fill `shape`, which is as long as the tensor's. */
JNIEXPORT void JNICALL NAME(shape)(JNIEnv *env, jclass self, jlong handle, jboolean is_output, jint i, jlongArray sizes, jlongArray shape) {
  (void)self;
  const network *net = network_of(handle);
  int64_t wanted[TVMFLOW_MAX_SIZES] = {0};
  sizes_from(env, net, sizes, wanted);
  jlong *found = (*env)->GetLongArrayElements(env, shape, NULL);
  if (!found) return;
  tvmflow_status status = net->api->shape_of(is_output, (uint32_t)i, wanted, (int64_t *)found);
  (*env)->ReleaseLongArrayElements(env, shape, found, 0);
  if (status) throw_status(env, net, status);
}

JNIEXPORT jint JNICALL NAME(padding)(JNIEnv *env, jclass self, jobject buffer, jint alignment) {
  (void)self;
  const uintptr_t address = (uintptr_t)(*env)->GetDirectBufferAddress(env, buffer), over = address % (uintptr_t)alignment;
  return over ? alignment - (jint)over : 0;
}

/* -- running -- */

/* Return the addresses of direct buffers, to be freed; NULL with an exception if out of memory. */
static void **buffer_addresses(JNIEnv *env, jobjectArray buffers) {
  const jsize count = (*env)->GetArrayLength(env, buffers);
  void **found = calloc((size_t)count + 1, sizeof *found);
  if (!found) throw_as(env, "java/lang/OutOfMemoryError", "no memory for the addresses of buffers");
  for (jsize i = 0; i < count && found; ++i) {
    jobject buffer = (*env)->GetObjectArrayElement(env, buffers, i);
    found[i] = (*env)->GetDirectBufferAddress(env, buffer);
    (*env)->DeleteLocalRef(env, buffer);
  }
  return found;
}

JNIEXPORT void JNICALL NAME(run)(JNIEnv *env, jclass self, jlong handle, jobjectArray inputs, jobjectArray outputs) {
  (void)self;
  const network *net = network_of(handle);
  void **from = buffer_addresses(env, inputs), **to = from ? buffer_addresses(env, outputs) : NULL;
  if (to) {
    tvmflow_status status = net->api->run(net->instance, (const void *const *)from, to);
    if (status) throw_status(env, net, status);
  }
  free(from), free(to);
}

JNIEXPORT void JNICALL NAME(runSized)(JNIEnv *env, jclass self, jlong handle, jlongArray sizes, jobjectArray inputs, jobjectArray outputs) {
  (void)self;
  const network *net = network_of(handle);
  int64_t wanted[TVMFLOW_MAX_SIZES] = {0};
  sizes_from(env, net, sizes, wanted);
  void **from = buffer_addresses(env, inputs), **to = from ? buffer_addresses(env, outputs) : NULL;
  if (to) {
    tvmflow_status status = net->api->run_sized(net->instance, wanted, (const void *const *)from, to);
    if (status) throw_status(env, net, status);
  }
  free(from), free(to);
}

static tvmflow_image image_of(JNIEnv *env, jobject pixels, jint width, jint height, jint stride, jint format) {
  return (tvmflow_image){(*env)->GetDirectBufferAddress(env, pixels), (uint32_t)width, (uint32_t)height, (size_t)stride, (tvmflow_pixels)format};
}

JNIEXPORT void JNICALL NAME(runImage)(JNIEnv *env, jclass self, jlong handle, jobject pixels, jint width, jint height, jint stride, jint format,
                                      jobjectArray outputs) {
  (void)self;
  const network *net = network_of(handle);
  const tvmflow_image image = image_of(env, pixels, width, height, stride, format);
  void **to = buffer_addresses(env, outputs);
  if (to) {
    tvmflow_status status = net->api->run_image(net->instance, &image, to);
    if (status) throw_status(env, net, status);
  }
  free(to);
}

JNIEXPORT void JNICALL NAME(classify)(JNIEnv *env, jclass self, jlong handle, jobject pixels, jint width, jint height, jint stride, jint format,
                                      jintArray numbers, jfloatArray probabilities) {
  (void)self;
  const network *net = network_of(handle);
  const tvmflow_image image = image_of(env, pixels, width, height, stride, format);
  const jsize k = (*env)->GetArrayLength(env, numbers);
  uint32_t *best = calloc((size_t)k, sizeof *best);
  float *likely = calloc((size_t)k, sizeof *likely);
  tvmflow_status status = best && likely ? net->api->classify(net->instance, &image, (uint32_t)k, best, likely) : TVMFLOW_NO_MEMORY;
  if (status) {
    throw_status(env, net, status);
  } else {
    (*env)->SetIntArrayRegion(env, numbers, 0, k, (const jint *)best);
    (*env)->SetFloatArrayRegion(env, probabilities, 0, k, likely);
  }
  free(best), free(likely);
}
