/* Resize and crop images in two passes, one per direction, both to 8 bits. A pixel is a weighted sum of the pixels under a filter, which is
 * as wide as an output pixel when the image shrinks; weights have 22 fractional bits. Equals Pillow 13 bit for bit. Cropped pixels are not
 * computed. */
#define _GNU_SOURCE
#include "image.h"

#include <string.h>

#define POINT 22 /* bits of a weight behind the point */
#define MAX_CHANNELS 3

/* One direction of the resize. Rows of `weights` are `taps` long; result i is made of `used[i]` pixels from start[i] on. */
typedef struct {
  uint32_t from, to;    /* pixels of the image, and of the image after its resize */
  uint32_t first;       /* pixel of the resized image that is the first of the `count` that are computed */
  uint32_t count;
  uint32_t at;          /* place of that pixel in the network's input: more than 0 where the image is smaller */
  uint32_t taps;
  uint32_t *start, *used;
  int32_t *weights;
} axis;

typedef struct {
  const plan_image *requested;
  axis x, y;
  const unsigned char *pixels;    /* of the image, or of a gray copy of it */
  size_t stride;
  uint32_t step;                  /* bytes of a pixel */
  uint32_t offset[MAX_CHANNELS];  /* in it, of each channel of the network */
  int is_vertical_first;
  const tvmflow_image *colors;    /* to be converted to `gray` first; NULL if not needed */
  unsigned char *gray;
  unsigned char *middle;          /* output of the first pass: `lines` of `columns` pixels, from row and column `from` */
  uint32_t lines, columns, from;
  unsigned char *sample;
} job;

/* -- formats -- */

/* Bytes of a pixel, and where in it red, green and blue are. */
static const struct {
  uint8_t step, red, green, blue;
} formats[] = {{3, 0, 1, 2}, {3, 2, 1, 0}, {4, 0, 1, 2}, {1, 0, 0, 0}};

static size_t stride_of(const tvmflow_image *image) {
  return image->stride ? image->stride : (size_t)image->width * formats[image->format].step;
}

const char *image_fault(const tvmflow_image *image) {
  if (!image || !image->pixels) return "an image has no pixels";
  if ((uint32_t)image->format >= sizeof formats / sizeof *formats) return "an image is of an unknown format";
  if (!image->width || !image->height || image->width > TVMFLOW_MAX_SIDE || image->height > TVMFLOW_MAX_SIDE)
    return "width and height of an image are 1 to TVMFLOW_MAX_SIDE";
  if (stride_of(image) < (size_t)image->width * formats[image->format].step) return "the stride of an image is less than its row";
  if (stride_of(image) > PTRDIFF_MAX / image->height) return "the stride of an image is more than any memory holds";
  return NULL;
}

/* -- one direction -- */

/* Half of a difference of pixels, rounded to the even one of two. */
static int64_t half(int64_t difference) {
  int64_t down = (difference - (difference & 1)) / 2;
  return difference & 1 && down & 1 ? down + 1 : down;
}

static double width_of_filter(const axis *made) {
  double scale = (double)made->from / made->to;
  return scale < 1 ? 1 : scale;
}

static axis axis_of(const plan_image *requested, uint32_t from, uint32_t other, uint32_t size) {
  uint32_t shorter = from < other ? from : other;
  axis made = {.from = from, .to = size};
  if (requested->resize) made.to = (uint32_t)((uint64_t)requested->resize * from / shorter);
  int64_t cut = half((int64_t)made.to - size); /* less than 0: black before the image */
  made.first = cut > 0 ? (uint32_t)cut : 0;
  made.at = cut < 0 ? (uint32_t)-cut : 0;
  made.count = made.to < size ? made.to : size;
  double support = (requested->filter == PLAN_BICUBIC ? 2 : 1) * width_of_filter(&made);
  made.taps = requested->filter == PLAN_NEAREST ? 1 : 2 * ((uint32_t)support + (support > (uint32_t)support)) + 1;
  return made;
}

static double weight_at(plan_filter filter, double distance) {
  double d = distance < 0 ? -distance : distance;
  if (filter == PLAN_BILINEAR) return d < 1 ? 1 - d : 0;
  if (d < 1) return ((-0.5 + 2) * d - (-0.5 + 3)) * d * d + 1;
  return d < 2 ? (((d - 5) * d + 8) * d - 4) * -0.5 : 0;
}

static void weigh(plan_filter filter, axis *made) {
  double scale = (double)made->from / made->to, filterwidth = width_of_filter(made), sharpness = 1 / filterwidth;
  double support = (filter == PLAN_BICUBIC ? 2 : 1) * filterwidth;
  for (uint32_t i = 0; i < made->count; ++i) {
    double center = (made->first + i + 0.5) * scale, sum = 0;
    int64_t first = (int64_t)(center - support + 0.5), last = (int64_t)(center + support + 0.5);
    if (first < 0) first = 0;
    if (last > made->from) last = made->from;
    made->start[i] = (uint32_t)first;
    made->used[i] = (uint32_t)(last - first);
    for (int64_t at = first; at < last; ++at) sum += weight_at(filter, ((double)at - center + 0.5) * sharpness);
    for (int64_t at = first; at < last; ++at) {
      double weight = weight_at(filter, ((double)at - center + 0.5) * sharpness);
      if (sum != 0) weight /= sum;
      weight *= 1 << POINT;
      made->weights[(size_t)i * made->taps + (size_t)(at - first)] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
  }
}

/* The nearest pixel is one tap. Its place is a sum of steps, not a product: they round differently. */
static void choose_nearest(axis *made) {
  double step = (double)made->from / made->to, place = step * 0.5;
  for (uint32_t i = 0; i < made->first + made->count; ++i, place += step) {
    if (i < made->first) continue;
    uint32_t at = (uint32_t)place;
    made->start[i - made->first] = at < made->from ? at : made->from - 1;
    made->used[i - made->first] = 1;
    made->weights[i - made->first] = 1 << POINT;
  }
}

/* -- the whole -- */

/* Take a piece of aligned memory; only count without memory. */
static void *cut(void *memory, size_t *used, size_t size) {
  void *piece = memory ? (unsigned char *)memory + *used : NULL;
  *used += (size + TVMFLOW_ALIGNMENT - 1) / TVMFLOW_ALIGNMENT * TVMFLOW_ALIGNMENT;
  return piece;
}

static void cut_axis(axis *made, void *memory, size_t *used) {
  made->start = cut(memory, used, made->count * sizeof *made->start);
  made->used = cut(memory, used, made->count * sizeof *made->used);
  made->weights = cut(memory, used, (size_t)made->count * made->taps * sizeof *made->weights);
}

/* Lay out the memory; return its bytes. The range that the second pass reads is known only with its weights, so all of it is allocated. */
static size_t lay_out(job *made, const plan_image *requested, const tvmflow_image *image, void *memory) {
  size_t used = 0;
  *made = (job){.requested = requested, .pixels = image->pixels, .stride = stride_of(image), .step = formats[image->format].step};
  made->x = axis_of(requested, image->width, image->height, requested->width);
  made->y = axis_of(requested, image->height, image->width, requested->height);
  made->is_vertical_first = made->y.to < made->y.from && (int64_t)made->y.from - made->y.to > 2 * ((int64_t)made->x.from - made->x.to);
  made->lines = made->is_vertical_first ? made->y.count : image->height;
  made->columns = made->is_vertical_first ? image->width : made->x.count;
  cut_axis(&made->x, memory, &used);
  cut_axis(&made->y, memory, &used);
  made->middle = cut(memory, &used, (size_t)made->lines * made->columns * requested->channels);
  if (requested->channels == 1 && image->format != TVMFLOW_GRAY) {
    made->colors = image;
    made->pixels = made->gray = cut(memory, &used, (size_t)image->height * image->width);
    made->stride = image->width;
    made->step = 1;
  } else {
    const uint32_t colors[] = {formats[image->format].red, formats[image->format].green, formats[image->format].blue};
    for (uint32_t channel = 0; channel < requested->channels; ++channel) made->offset[channel] = colors[requested->is_bgr ? 2 - channel : channel];
  }
  return used;
}

size_t image_memory(const plan_image *requested, const tvmflow_image *image) {
  job sizes;
  return lay_out(&sizes, requested, image, NULL);
}

/* -- the passes: a share of the rows for each task -- */

static uint32_t share(uint32_t rows, int task, const pool_group *group) {
  return (uint32_t)((uint64_t)rows * (uint32_t)task / (uint32_t)group->num_task);
}

/* Brightness of ITU-R 601, 16 bits behind the point. */
static int mix_rows(int task, pool_group *group, void *data) {
  const job *doing = data;
  const tvmflow_image *image = doing->colors;
  const uint32_t step = formats[image->format].step, red = formats[image->format].red, blue = formats[image->format].blue;
  for (uint32_t row = share(image->height, task, group); row < share(image->height, task + 1, group); ++row) {
    const unsigned char *from = (const unsigned char *)image->pixels + row * stride_of(image);
    unsigned char *to = doing->gray + (size_t)row * image->width;
    for (uint32_t i = 0; i < image->width; ++i, from += step)
      to[i] = (unsigned char)((from[red] * 19595u + from[1] * 38470u + from[blue] * 7471u + 0x8000u) >> 16);
  }
  return 0;
}

/* Pixel i of an axis from values `step` bytes apart, of which `from` is the one that it begins with. */
static unsigned char weighted(const axis *along, uint32_t i, const unsigned char *from, size_t step) {
  const int32_t *weights = along->weights + (size_t)i * along->taps;
  int32_t sum = 1 << (POINT - 1);
  for (uint32_t tap = 0; tap < along->used[i]; ++tap) sum += from[tap * step] * weights[tap];
  if (sum < 0) return 0;
  sum >>= POINT;
  return (unsigned char)(sum > 255 ? 255 : sum);
}

static int first_pass(int task, pool_group *group, void *data) {
  const job *doing = data;
  const axis *x = &doing->x, *y = &doing->y;
  const uint32_t channels = doing->requested->channels;
  unsigned char *to = doing->middle + (size_t)share(doing->lines, task, group) * doing->columns * channels;
  for (uint32_t line = share(doing->lines, task, group); line < share(doing->lines, task + 1, group); ++line)
    for (uint32_t column = 0; column < doing->columns; ++column) {
      const size_t row = doing->is_vertical_first ? y->start[line] : doing->from + line;
      const size_t first = doing->is_vertical_first ? doing->from + column : x->start[column];
      const unsigned char *from = doing->pixels + row * doing->stride + first * doing->step;
      for (uint32_t channel = 0; channel < channels; ++channel)
        *to++ = doing->is_vertical_first ? weighted(y, line, from + doing->offset[channel], doing->stride)
                                         : weighted(x, column, from + doing->offset[channel], doing->step);
    }
  return 0;
}

static unsigned char second_pass(const job *doing, uint32_t line, uint32_t column, uint32_t channel) {
  const axis *x = &doing->x, *y = &doing->y;
  const size_t channels = doing->requested->channels, width = doing->columns * channels;
  if (doing->is_vertical_first)
    return weighted(x, column, doing->middle + line * width + (x->start[column] - doing->from) * channels + channel, channels);
  return weighted(y, line, doing->middle + (y->start[line] - doing->from) * width + column * channels + channel, width);
}

static void put(const plan_image *requested, unsigned char *sample, uint32_t y, uint32_t x, uint32_t channel, unsigned char value) {
  size_t at = y * requested->row_step + x * requested->column_step + channel * requested->channel_step, found = channel * 256u + value;
  switch (requested->element) {
    case 1: sample[at] = ((const uint8_t *)requested->table)[found]; break;
    case 2: ((uint16_t *)(void *)sample)[at] = ((const uint16_t *)requested->table)[found]; break;
    case 4: ((uint32_t *)(void *)sample)[at] = ((const uint32_t *)requested->table)[found]; break;
    default: ((uint64_t *)(void *)sample)[at] = ((const uint64_t *)requested->table)[found];
  }
}

/* Run the second pass, into the network's input. Pixels beyond the image are black. */
static int fill_rows(int task, pool_group *group, void *data) {
  const job *doing = data;
  const plan_image *requested = doing->requested;
  const axis *x = &doing->x, *y = &doing->y;
  for (uint32_t row = share(requested->height, task, group); row < share(requested->height, task + 1, group); ++row)
    for (uint32_t i = 0; i < requested->width; ++i) {
      uint32_t line = row - y->at, column = i - x->at; /* beyond any count where they are before the image */
      int is_black = line >= y->count || column >= x->count;
      for (uint32_t channel = 0; channel < requested->channels; ++channel)
        put(requested, doing->sample, row, i, channel, is_black ? 0 : second_pass(doing, line, column, channel));
    }
  return 0;
}

/* Return the end of the source pixels of an axis. */
static uint32_t end_of(const axis *made) { return made->start[made->count - 1] + made->used[made->count - 1]; }

void image_prepare(const plan_image *requested, const tvmflow_image *image, void *memory, pool *threads, uint32_t team, void *sample) {
  job doing;
  lay_out(&doing, requested, image, memory);
  doing.sample = sample;
  axis *axes[] = {&doing.x, &doing.y};
  for (int i = 0; i < 2; ++i) {
    if (requested->filter == PLAN_NEAREST) choose_nearest(axes[i]);
    else weigh(requested->filter, axes[i]);
  }
  const axis *second = doing.is_vertical_first ? &doing.x : &doing.y;
  doing.from = second->start[0];
  *(doing.is_vertical_first ? &doing.columns : &doing.lines) = end_of(second) - doing.from;
  if (doing.colors) pool_run(threads, team, mix_rows, &doing, 0, 0);
  pool_run(threads, team, first_pass, &doing, 0, 0);
  pool_run(threads, team, fill_rows, &doing, 0, 0);
}
