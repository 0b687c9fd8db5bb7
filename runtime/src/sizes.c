/* Dynamic sizes of inputs: choose the smallest bucket, pad inputs and crop outputs. */
#include "sizes.h"

#include <stdio.h>
#include <string.h>

static const tvmflow_tensor *largest_tensor(uint32_t tensor) {
  return tensor < plan_api.inputs ? &plan.inputs[tensor] : &plan.outputs[tensor - plan_api.inputs];
}

/* Return the dynamic axis, NULL if its size is fixed. */
static const plan_axis *dynamic_axis(uint32_t tensor, uint32_t axis) {
  for (const plan_axis *at = plan.sizes->axes; at < plan.sizes->axes + plan.sizes->axis_count; ++at)
    if (at->tensor == tensor && at->axis == axis) return at;
  return NULL;
}

int sizes_fault(const int64_t *sizes, char *error, size_t room) {
  for (uint32_t i = 0; i < plan_api.sizes; ++i) {
    const tvmflow_size *one = &plan.sizes->sizes[i];
    const int64_t most = one->buckets[one->count - 1];
    if (sizes[i] >= 1 && sizes[i] <= most) continue;
    snprintf(error, room, "%.60s is %lld, and this network takes 1 to %lld: give it less at a time, or build it with a larger bucket", one->name,
             (long long)sizes[i], (long long)most);
    return -1;
  }
  return 0;
}

int sizes_read(const int64_t *const *shapes, int64_t *sizes, char *error, size_t room) {
  for (uint32_t i = 0; i < plan_api.sizes; ++i) sizes[i] = 0;
  for (uint32_t tensor = 0; tensor < plan_api.inputs; ++tensor) {
    const tvmflow_tensor *of = largest_tensor(tensor);
    for (int32_t axis = 0; axis < of->ndim; ++axis) {
      const plan_axis *dynamic = dynamic_axis(tensor, (uint32_t)axis);
      const int64_t found = shapes[tensor][axis], wanted = dynamic ? sizes[dynamic->size] : of->shape[axis];
      if (dynamic && !wanted) sizes[dynamic->size] = found;
      if (found == wanted || (dynamic && !wanted)) continue;
      snprintf(error, room, "size %d of input %.60s is %lld, and not %lld%s%.60s", (int)axis, of->name, (long long)found, (long long)wanted,
               dynamic ? ", the other inputs' " : "", dynamic ? plan.sizes->sizes[dynamic->size].name : "");
      return -1;
    }
  }
  return sizes_fault(sizes, error, room);
}

const plan_tables *sizes_bucket(const int64_t *sizes) {
  for (const plan_bucket *at = plan.sizes->buckets; at < plan.sizes->buckets + plan.sizes->bucket_count; ++at) {
    int holds = 1;
    for (uint32_t i = 0; i < plan_api.sizes; ++i) holds &= sizes[i] <= at->sizes[i];
    if (holds) return at->plan;
  }
  return &plan;
}

void sizes_shape(uint32_t tensor, const int64_t *sizes, int64_t *shape) {
  const tvmflow_tensor *of = largest_tensor(tensor);
  for (int32_t axis = 0; axis < of->ndim; ++axis) {
    const plan_axis *dynamic = dynamic_axis(tensor, (uint32_t)axis);
    const int64_t elements = dynamic ? sizes[dynamic->size] * dynamic->times + dynamic->plus : 0;
    shape[axis] = !dynamic ? of->shape[axis] : elements > 0 ? (elements + dynamic->over - 1) / dynamic->over : 0;
  }
}

static size_t byte_count(const int64_t *shape, int32_t ndim, size_t element) {
  for (int32_t axis = 0; axis < ndim; ++axis) element *= (size_t)shape[axis];
  return element;
}

static int is_same_shape(const int64_t *a, const int64_t *b, int32_t ndim) {
  for (int32_t axis = 0; axis < ndim; ++axis)
    if (a[axis] != b[axis]) return 0;
  return 1;
}

int sizes_are_exact(uint32_t tensor, const tvmflow_tensor *in_bucket, const int64_t *sizes) {
  int64_t shape[PLAN_MAX_AXES];
  if (!sizes) return 1;
  sizes_shape(tensor, sizes, shape);
  return is_same_shape(shape, in_bucket->shape, in_bucket->ndim);
}

/* Copy the common part of two tensors, from the first element of each axis. */
static void copy_common(unsigned char *to, const int64_t *to_shape, const unsigned char *from, const int64_t *from_shape, int32_t ndim, size_t element) {
  if (is_same_shape(to_shape, from_shape, ndim)) {
    memcpy(to, from, byte_count(to_shape, ndim, element));
    return;
  }
  const size_t to_step = byte_count(to_shape + 1, ndim - 1, element), from_step = byte_count(from_shape + 1, ndim - 1, element);
  const int64_t count = *to_shape < *from_shape ? *to_shape : *from_shape;
  for (int64_t i = 0; i < count; ++i)
    copy_common(to + (size_t)i * to_step, to_shape + 1, from + (size_t)i * from_step, from_shape + 1, ndim - 1, element);
}

static size_t element_size(const tvmflow_tensor *tensor) { return tensor->size / byte_count(tensor->shape, tensor->ndim, 1); }

void sizes_pad(uint32_t input, const tvmflow_tensor *in_bucket, const int64_t *sizes, const void *from, void *to) {
  int64_t shape[PLAN_MAX_AXES];
  const size_t element = element_size(in_bucket);
  unsigned char *end = (unsigned char *)to + in_bucket->size;
  for (unsigned char *at = to; at < end; at += element) memcpy(at, plan.sizes->pads[input], element);
  sizes_shape(input, sizes, shape);
  copy_common(to, in_bucket->shape, from, shape, in_bucket->ndim, element);
}

void sizes_cut(uint32_t tensor, const tvmflow_tensor *in_bucket, const int64_t *sizes, const void *from, void *to) {
  int64_t shape[PLAN_MAX_AXES];
  sizes_shape(tensor, sizes, shape);
  copy_common(to, shape, from, in_bucket->shape, in_bucket->ndim, element_size(in_bucket));
}
