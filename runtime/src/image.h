/* Convert an 8-bit image to a network's input: resize, crop, and look up each value in a table. */
#ifndef TVMFLOW_IMAGE_H
#define TVMFLOW_IMAGE_H

#include "plan.h"
#include "pool.h"

/* Return the fault of an image, NULL for none. */
const char *image_fault(const tvmflow_image *image);
/* Return the workspace bytes of an image. */
size_t image_memory(const plan_image *requested, const tvmflow_image *image);
/* Write one sample of the network's input. memory: the workspace, aligned to TVMFLOW_ALIGNMENT; team: number of threads. */
void image_prepare(const plan_image *requested, const tvmflow_image *image, void *memory, pool *threads, uint32_t team, void *sample);

#endif
