/* Inputs whose sizes a run chooses: the smallest bucket that holds them, padding, and cutting of outputs. */
#ifndef TVMFLOW_SIZES_H
#define TVMFLOW_SIZES_H

#include "plan.h"

/* Say in `error`, of `room` bytes, what is wrong with the sizes of a run, and return nonzero; 0: nothing. */
int sizes_fault(const int64_t *sizes, char *error, size_t room);
/* Find the sizes of a run in the shapes of its inputs; faults as above. */
int sizes_read(const int64_t *const *shapes, int64_t *sizes, char *error, size_t room);
/* The smallest bucket that holds sizes without a fault. */
const plan_tables *sizes_bucket(const int64_t *sizes);
/* The shape of a tensor, counted over inputs, then outputs. */
void sizes_shape(uint32_t tensor, const int64_t *sizes, int64_t *shape);
/* Whether a tensor of a bucket is exactly as large as in a run; sizes: NULL for all of the bucket. */
int sizes_are_exact(uint32_t tensor, const tvmflow_tensor *in_bucket, const int64_t *sizes);
/* Copy an input into a bucket's, and fill what is beyond it. */
void sizes_pad(uint32_t input, const tvmflow_tensor *in_bucket, const int64_t *sizes, const void *from, void *to);
/* Copy what is real of a bucket's tensor. */
void sizes_cut(uint32_t tensor, const tvmflow_tensor *in_bucket, const int64_t *sizes, const void *from, void *to);

#endif
