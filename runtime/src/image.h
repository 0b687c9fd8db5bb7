/* From an image of 8 bits to a network's input: resized, cropped, and each value looked up in a table. */
#ifndef TVMFLOW_IMAGE_H
#define TVMFLOW_IMAGE_H

#include "plan.h"
#include "pool.h"

/* Return what is wrong with an image, NULL for nothing. */
const char *image_fault(const tvmflow_image *image);
/* Return the bytes of working memory that an image needs. */
size_t image_memory(const plan_image *wanted, const tvmflow_image *image);
/* Write one sample of the network's input. memory: of that size, aligned to TVMFLOW_ALIGNMENT; team: how many threads. */
void image_prepare(const plan_image *wanted, const tvmflow_image *image, void *memory, pool *threads, uint32_t team, void *sample);

#endif
