/* Dynamic sizes of inputs: choose the smallest bucket, pad inputs and crop outputs. */
#ifndef TVMFLOW_SIZES_H
#define TVMFLOW_SIZES_H

#include "plan.h"

/* Return nonzero, with a message in `error` of `room` bytes, if the sizes of a run are invalid. */
int sizes_fault(const int64_t *sizes, char *error, size_t room);
/* Read the sizes of a run from the shapes of its inputs; errors as above. */
int sizes_read(const int64_t *const *shapes, int64_t *sizes, char *error, size_t room);
/* Return the smallest bucket that holds valid sizes. */
const plan_tables *sizes_bucket(const int64_t *sizes);
/* Write the shape of a tensor, counted over inputs, then outputs. */
void sizes_shape(uint32_t tensor, const int64_t *sizes, int64_t *shape);
/* Return whether a tensor of a bucket has exactly the shape of a run; sizes: NULL for those of the bucket. */
int sizes_are_exact(uint32_t tensor, const tvmflow_tensor *in_bucket, const int64_t *sizes);
/* Copy an input into a bucket's, and pad it. */
void sizes_pad(uint32_t input, const tvmflow_tensor *in_bucket, const int64_t *sizes, const void *from, void *to);
/* Copy a bucket's tensor without its padding. */
void sizes_cut(uint32_t tensor, const tvmflow_tensor *in_bucket, const int64_t *sizes, const void *from, void *to);

#endif
