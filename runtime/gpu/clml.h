/* Layers of the plan that CLML computes, Qualcomm's library for Adreno (cl_qcom_ml_ops), in place of kernels.
 *
 * clml.c includes the header of Qualcomm's SDK and is compiled only where the user has that; this file needs none of it. Functions that return an int
 * return 0 for success, else -1 with the reason in `why`, of GPU_REASON bytes. */
#ifndef TVMFLOW_CLML_H
#define TVMFLOW_CLML_H

#include "network_gpu.h"
#include "program_cache.h"

struct _cl_context;
struct _cl_command_queue;
struct _cl_mem;
struct _cl_event;
struct _cl_recording_qcom;

typedef struct clml_part clml_part;

/* find: returns a function of the library of OpenCL that is `loaded`, NULL for none. */
typedef struct {
  void *(*find)(const void *loaded, const char *name);
  const void *loaded;
  struct _cl_context *context;
  struct _cl_command_queue *queue;
} clml_driver;

enum { CLML_EVENTS = 4 }; /* of a step: of its operator, and of the copies of two inputs and an output to and from the layout of CLML */

/* Get the interface of the driver, and a tensor for each value that a layer touches. */
int clml_open(const clml_driver *driver, clml_part **made, char *why);
/* Bytes of a value that only layers touch, in CLML's layout. */
uint64_t clml_size_of(const clml_part *part, uint32_t value);
/* Upload the weights and create the operators. values: the buffer of each value, NULL for constants that only layers read. tuning: where what the driver
 * found by trying is kept; without a folder nothing is tried. profiled: a queue for that, NULL for none. */
int clml_create(clml_part *part, struct _cl_mem *const *values, const program_key *tuning, struct _cl_command_queue *profiled, char *why);
/* Enqueue the operator of a step, nothing else. event: as OpenCL's, may be NULL. */
int clml_enqueue(clml_part *part, struct _cl_command_queue *queue, uint32_t step, struct _cl_event **event, char *why);
/* Enqueue the copies that a step needs before it, or behind it. events: room for three, or NULL. */
int clml_enqueue_copies(clml_part *part, struct _cl_command_queue *queue, uint32_t step, int is_behind, struct _cl_event **events, char *why);
/* Launch recorded operators; returns the driver's error. */
int clml_launch(clml_part *part, struct _cl_command_queue *queue, struct _cl_recording_qcom *recording);
void clml_close(clml_part *part);

#endif
