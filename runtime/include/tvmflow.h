/* tvmflow.h: run a network that was compiled to one shared object.
 *
 * The library needs nothing but the C library. It reads no environment variables, keeps no state outside of its instances but
 * each thread's last error and a list of them, and never aborts or exits: every call returns a status, and last_error says more. Several
 * networks may be used in one process, each through its own table of functions:
 *
 *     const tvmflow_api *api = tvmflow_network_digits();            // the library is linked: the name ends in the network's
 *     const tvmflow_api *api = ((tvmflow_entry)dlsym(library, "tvmflow_network"))();            // or opened by dlopen
 *     tvmflow_instance *net = NULL;
 *     tvmflow_status status = api->create(NULL, &net);              // NULL: default options
 *     status = api->run(net, inputs, outputs);                      // arrays of pointers to the caller's memory
 *     api->destroy(net);
 *
 * An instance may be used by any thread, by one at a time: a second caller waits. Instances of one network share its weights,
 * also between processes. In a child of fork an instance starts threads of its own with its first run; one that another thread
 * ran at that moment, or that has an accelerator or a GPU, returns an error there. Callbacks do not fork.
 */
#ifndef TVMFLOW_H
#define TVMFLOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented when the meaning of a member changes; new members are appended to their structs. */
#define TVMFLOW_ABI_VERSION 1
/* Bytes. Inputs and outputs may have any address. An output at a multiple of this is written in place, any other is copied; so is what an accelerator
 * reads. Other inputs are read in place at any address that the size of an element divides, and copied at others. */
#define TVMFLOW_ALIGNMENT 64

typedef enum {
  TVMFLOW_OK = 0,
  TVMFLOW_BAD_ARGUMENT = 1, /* a NULL pointer, an index or an option out of range */
  TVMFLOW_NO_MEMORY = 2,    /* the allocator returned NULL */
  TVMFLOW_NO_THREADS = 3,   /* the system created no thread, or refused the CPU mask; or a child of fork has an instance in the middle of a run */
  TVMFLOW_KERNEL_FAILED = 4, /* a kernel refused its arguments: the library is damaged or was built wrongly */
  TVMFLOW_DEVICE_FAILED = 5, /* the driver of the accelerator or GPU failed, or is a parent process's */
  TVMFLOW_WRONG_PROCESSOR = 6 /* create: this processor lacks an instruction that the library was compiled for, which last_error names */
} tvmflow_status;

typedef enum {
  TVMFLOW_FLOAT32 = 0,
  TVMFLOW_FLOAT16 = 1,
  TVMFLOW_BFLOAT16 = 2,
  TVMFLOW_INT8 = 3,
  TVMFLOW_UINT8 = 4,
  TVMFLOW_INT32 = 5,
  TVMFLOW_INT64 = 6,
  TVMFLOW_BOOL = 7
} tvmflow_dtype;

/* An input or output. shape has ndim sizes, the batch first; size is in bytes, elements are contiguous. */
typedef struct {
  const char *name;
  const int64_t *shape;
  int32_t ndim;
  tvmflow_dtype dtype;
  size_t size;
} tvmflow_tensor;

/* All zero means: the number of threads that the network was tuned for, on any core, with memory from the C library. */
typedef struct {
  uint32_t threads;  /* that compute at most, the caller's own among them; up to TVMFLOW_MAX_THREADS, and no more than there are CPUs for: threads_of */
  uint64_t cpu_mask; /* bit i: the threads of the library may run on CPU i; 0: on the fastest kind of core where there are several */
  uint32_t spin_us;  /* how long an idle thread waits for work before it sleeps; 0: the default, UINT32_MAX: never spin */
  void *(*allocate)(void *context, size_t size, size_t alignment); /* both are called by several threads at a time */
  void (*release)(void *context, void *memory);
  void *context;
} tvmflow_options;
#define TVMFLOW_MAX_THREADS 64

/* Memory that CPU and accelerator share. */
typedef struct {
  void *data;       /* address for the CPU */
  uint64_t address; /* address for the accelerator */
  size_t size;
  void *handle; /* the driver's own */
} tvmflow_memory;

/* The driver of a network's accelerator. Functions that return an int return 0 for success. Instances call them concurrently: a driver
 * with one accelerator for several must lock. */
typedef struct {
  uint32_t size; /* sizeof(tvmflow_driver) */
  void *context; /* given to every function */
  /* Contiguous memory, which begins at a page of 4096 bytes: fills data, address and handle; size is set. */
  int (*allocate)(void *context, tvmflow_memory *memory);
  void (*release)(void *context, tvmflow_memory *memory);
  /* Make visible to the accelerator what the CPU wrote, and to the CPU what the accelerator wrote; NULL if nothing is to be done. */
  void (*flush)(void *context, const tvmflow_memory *memory, size_t offset, size_t size);
  void (*invalidate)(void *context, const tvmflow_memory *memory, size_t offset, size_t size);
  /* Run `count` instructions, which lie `offset` bytes into `code`, until FINISH is over; all addresses in them count from `memory`. */
  int (*launch)(void *context, const tvmflow_memory *code, size_t offset, uint32_t count, const tvmflow_memory *memory);
} tvmflow_driver;

/* The options of a network that was compiled for a GPU. All zero but size means: the first GPU that the system's driver lists. */
typedef struct {
  uint32_t size;       /* sizeof(tvmflow_gpu) */
  const char *library; /* path of the driver or its loader; NULL: the usual places */
  const char *device;  /* a part of the device's name; NULL: the first GPU, or the first device if there is none */
  const char *cache;   /* an existing folder for compiled programs, which only this app can write; NULL: they are compiled at each start */
} tvmflow_gpu;

/* The processor that runs an instance. Texts are "" if unknown, and valid as long as the instance. */
typedef struct {
  const char *kind;                      /* "cpu" or "gpu" */
  const char *reason;                    /* why the CPU is used instead of the GPU; set by create_with_gpu */
  const char *device, *driver, *version; /* names of the GPU, its driver and the driver's version, by the driver */
} tvmflow_processor;

/* The profile of a kernel since profiling was turned on. */
typedef struct {
  const char *kernel;
  uint64_t calls;
  uint64_t nanoseconds;
} tvmflow_profile;

/* The order of the channels of a pixel in memory, 8 bits each. */
typedef enum {
  TVMFLOW_RGB = 0,
  TVMFLOW_BGR = 1,
  TVMFLOW_RGBA = 2, /* the fourth is ignored */
  TVMFLOW_GRAY = 3  /* one */
} tvmflow_pixels;

/* An image in the caller's memory, rows from the top. */
typedef struct {
  const void *pixels;
  uint32_t width, height; /* 1 to TVMFLOW_MAX_SIDE */
  size_t stride;          /* bytes from the beginning of a row to that of the next; 0: rows are contiguous */
  tvmflow_pixels format;
} tvmflow_image;
#define TVMFLOW_MAX_SIDE 32768

/* A dynamic size of inputs, as the length of a text or the batch: any of 1 to buckets[count - 1]. The network was compiled for each of
 * `buckets`, which ascend; a run uses the smallest that holds it, and pads inputs to it. */
typedef struct {
  const char *name;
  const int64_t *buckets;
  uint32_t count;
} tvmflow_size;
#define TVMFLOW_MAX_SIZES 2

typedef struct tvmflow_instance tvmflow_instance;

/* The functions of one network. Those that return a status leave their outputs alone unless it is TVMFLOW_OK. */
typedef struct tvmflow_api {
  uint32_t abi_version; /* TVMFLOW_ABI_VERSION of the library */
  uint32_t size;        /* bytes of this struct in the library: members of a newer header lie beyond it */
  const char *network;  /* model@target:precision */
  uint32_t inputs, outputs, kernels;
  uint32_t threads;     /* that the network was tuned for */
  size_t arena_size;    /* bytes that an instance allocates for values between kernels */
  size_t constant_size; /* bytes of weights, shared by all instances */

  /* Information on input or output i; TVMFLOW_BAD_ARGUMENT when there is none. */
  tvmflow_status (*input)(uint32_t i, tvmflow_tensor *info);
  tvmflow_status (*output)(uint32_t i, tvmflow_tensor *info);

  /* Create an instance; options may be NULL. *instance stays as it was on failure. */
  tvmflow_status (*create)(const tvmflow_options *options, tvmflow_instance **instance);
  /* Run once: inputs[i] and outputs[i] point to the memory of input and output i. Inputs are not changed; outputs overlap neither them nor each
   * other. No byte beyond their sizes is read or written. */
  tvmflow_status (*run)(tvmflow_instance *instance, const void *const *inputs, void *const *outputs);
  /* Destroy an instance, which must not be running; NULL is allowed. */
  void (*destroy)(tvmflow_instance *instance);

  /* Return the error message of this thread's last create or run, "" for none. Valid until the thread's next call. */
  const char *(*last_error)(void);
  /* Turn the profile of kernels on (and set it to zero) or off. */
  tvmflow_status (*set_profiling)(tvmflow_instance *instance, int on);
  /* The profile of kernel call i, in the order of calls; i = kernels: preparation of images. On a GPU:
   * i = kernels + 1: upload of the inputs, kernels + 2: download of the outputs; profiled runs wait for each part. */
  tvmflow_status (*profile)(const tvmflow_instance *instance, uint32_t i, tvmflow_profile *found);

  /* Names of classes, NULL if the network has none. */
  const char *const *labels;
  uint32_t label_count;
  /* Indices of the k largest of `count` scores, the largest first; ties by index. NaN is never among them. */
  tvmflow_status (*top_k)(const float *scores, uint32_t count, uint32_t k, uint32_t *indices);

  /* Number of images of run_image, the batch; 0 if the network takes none. */
  uint32_t images;
  /* Run on images[0] to images[api->images - 1] as the network was trained to see them: resized, cropped, normalized. outputs as of run. */
  tvmflow_status (*run_image)(tvmflow_instance *instance, const tvmflow_image *images, void *const *outputs);
  /* Run on one image and return the k most probable classes of its first output, as top_k does, and their probabilities unless that is NULL. */
  tvmflow_status (*classify)(tvmflow_instance *instance, const tvmflow_image *image, uint32_t k, uint32_t *indices, float *probabilities);

  /* The design of the accelerator that computes a part of the network, as sim_1x16_i8w8a32_15_15_18_17; NULL if there is none. */
  const char *device;
  /* As create, of a network with a device, which needs a driver for it. The driver is copied; its context lives as long as the instance. */
  tvmflow_status (*create_on)(const tvmflow_options *options, const tvmflow_driver *driver, tvmflow_instance **instance);

  /* "opencl" or "vulkan" where a GPU computes the network, else NULL: also in a library that create_with_gpu makes use one. */
  const char *gpu;
  /* As create, which is this with a `gpu` of zeros. TVMFLOW_DEVICE_FAILED where there is no usable GPU: last_error says why. With the network's
   * library for the CPU an app takes that one's create_with_gpu. */
  tvmflow_status (*create_on_gpu)(const tvmflow_options *options, const tvmflow_gpu *gpu, tvmflow_instance **instance);

  /* Return the processor of an instance's next run. */
  tvmflow_status (*processor)(const tvmflow_instance *instance, tvmflow_processor *found);

  /* Largest error of an output, in its spread over the classes, that the precision allows. */
  double tolerance;
  /* As create, of a network for the CPU, with the library of the same network for a GPU, which is used until it fails: it is opened,
   * and its outputs are compared with the CPU's on `sample`, pointers to the inputs of a run (NULL: on reproducible numbers). If they differ,
   * or it fails in a later run, the CPU computes that run and all that follow: processor returns the reason. other: its functions; NULL: the app has
   * none for this device. gpu: as of create_on_gpu. */
  tvmflow_status (*create_with_gpu)(const tvmflow_options *options, const struct tvmflow_api *other, const tvmflow_gpu *gpu, const void *const *sample,
                                    tvmflow_instance **instance);

  /* Number of dynamic sizes; 0 if all inputs and outputs have one shape. Otherwise `input`, `output` and `run` are of the largest
   * of each, and so is `profile`: of runs in the largest bucket. */
  uint32_t sizes;
  tvmflow_status (*size_of)(uint32_t i, tvmflow_size *info);
  /* Find the sizes, sizes[0] to sizes[api->sizes - 1], that inputs of these shapes have: shapes[i] as many numbers as input i has axes. Sets
   * last_error if one does not fit, or is larger than the largest bucket. */
  tvmflow_status (*sizes_of)(const int64_t *const *shapes, int64_t *sizes);
  /* Write the shape that input or output i has in a run of such sizes. */
  tvmflow_status (*shape_of)(int is_output, uint32_t i, const int64_t *sizes, int64_t *shape);
  /* As run, with inputs and outputs of these sizes, contiguous elements: the library pads and crops. */
  tvmflow_status (*run_sized)(tvmflow_instance *instance, const int64_t *sizes, const void *const *inputs, void *const *outputs);

  /* Return the number of threads of an instance's next run: as many as requested, or as there are CPUs for; after the first runs as many as make it
   * faster, 1 if none do; each kernel has its own number of these. It is tried again from time to time. 0 for NULL. */
  uint32_t (*threads_of)(tvmflow_instance *instance);

  /* Number of inputs that are states: each has an output of its shape, whose value is the input of the next run. A run whose inputs[i] is NULL
   * for a state takes what the instance carries: at first zeros, or what the model's file assigns, and then the output of its last run, whoever gave
   * that run's state. outputs[i] may be NULL for the output of a state. 0: the network has none. */
  uint32_t states;
  /* Find input and output of state i. */
  tvmflow_status (*state_of)(uint32_t i, uint32_t *input, uint32_t *output);
  /* Set all states that the instance carries to what they are at first, for the beginning of another stream. */
  tvmflow_status (*state_reset)(tvmflow_instance *instance);
} tvmflow_api;

typedef const tvmflow_api *(*tvmflow_entry)(void);

#ifdef __cplusplus
}
#endif
#endif
