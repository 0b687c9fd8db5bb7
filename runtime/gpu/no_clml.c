/* In place of clml.c in libraries whose kernels compute all. */
#include "clml.h"

#include <stdio.h>

int clml_open(const clml_driver *driver, clml_part **made, char *why) {
  (void)driver, (void)made;
  snprintf(why, GPU_REASON, "CLML: this library was built without it");
  return -1;
}

uint64_t clml_size_of(const clml_part *part, uint32_t value) { return (void)part, (void)value, 0; }

int clml_create(clml_part *part, struct _cl_mem *const *values, const program_key *tuning, struct _cl_command_queue *profiled, char *why) {
  return (void)part, (void)values, (void)tuning, (void)profiled, (void)why, -1;
}

int clml_enqueue(clml_part *part, struct _cl_command_queue *queue, uint32_t step, struct _cl_event **event, char *why) {
  return (void)part, (void)queue, (void)step, (void)event, (void)why, -1;
}

int clml_enqueue_copies(clml_part *part, struct _cl_command_queue *queue, uint32_t step, int is_behind, struct _cl_event **events, char *why) {
  return (void)part, (void)queue, (void)step, (void)is_behind, (void)events, (void)why, -1;
}

int clml_launch(clml_part *part, struct _cl_command_queue *queue, struct _cl_recording_qcom *recording) {
  return (void)part, (void)queue, (void)recording, -1;
}

void clml_close(clml_part *part) { (void)part; }
