/* Convolutions of 8-bit values with exact 32-bit sums, and their requantization.
 *
 * Bit-exact to tvmflow/ir/relax/numpy_interpreter.py, several times as fast. Sums do not overflow: 2^16 products fit.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A word holds the values of some channels of one pixel; a register holds words of neighbouring pixels. `multiply` adds the dot products of words to sums. */
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) /* four bytes, unsigned in the image */
#include <immintrin.h>
typedef uint8_t pixel;
typedef int8_t weight_of_word;
typedef __m512i words;
#define PER_WORD 4
#define WIDE 4 /* registers of sums for each output */
#define SIGNED 0
#define load(from) _mm512_loadu_si512(from)
#define store(to, sums) _mm512_storeu_si512(to, sums)
#define everywhere(word) _mm512_set1_epi32(word)
#define multiply(sums, x, w) _mm512_dpbusd_epi32(sums, x, w)
#elif defined(__AVX2__) /* two 16-bit numbers, whose dot product is exact */
#include <immintrin.h>
typedef int16_t pixel;
typedef int16_t weight_of_word;
typedef __m256i words;
#define PER_WORD 2
#define WIDE 2
#define SIGNED 1
#define load(from) _mm256_loadu_si256((const __m256i *)(from))
#define store(to, sums) _mm256_storeu_si256((__m256i *)(to), sums)
#define everywhere(word) _mm256_set1_epi32(word)
#define multiply(sums, x, w) _mm256_add_epi32(sums, _mm256_madd_epi16(x, w))
#else /* the same without a dot product instruction */
typedef int16_t pixel;
typedef int16_t weight_of_word;
typedef int32_t words __attribute__((vector_size(16)));
#define PER_WORD 2
#define WIDE 2
#define SIGNED 1
static inline words load(const int32_t *from) {
    words found;
    memcpy(&found, from, sizeof found);
    return found;
}
#define store(to, sums) memcpy(to, &(sums), sizeof(words))
#define everywhere(word) ((word) + (words){0})
#define multiply(sums, x, w) ((sums) + ((x) << 16 >> 16) * ((w) << 16 >> 16) + ((x) >> 16) * ((w) >> 16)) /* little-endian: the first is the low half */
#endif

#define ROWS 6 /* outputs of a tile */
#define LANES ((int64_t)(sizeof(words) / 4))
#define PIXELS (WIDE * LANES)
#define NEAR (128 << 10) /* bytes of columns that stay in the cache of a core */

typedef struct {
    int64_t channels, height, width; /* of the image */
    int64_t outputs, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top, left;
} shapes;

static int64_t words_of(int64_t channels) { return (channels + PER_WORD - 1) / PER_WORD; }

/* Return the bytes of packed weights. */
int64_t integer_packed_bytes(int64_t outputs, int64_t channels, int64_t taps) { return (outputs + ROWS - 1) / ROWS * ROWS * words_of(channels) * taps * 4; }

/* Pack weights (outputs, channels, kernel_h, kernel_w) -> (outputs / ROWS, words, kernel_h, kernel_w, ROWS, PER_WORD), and sum the weights of each output. */
void integer_pack(const int8_t *weight, void *packed, int32_t *sums, int64_t outputs, int64_t channels, int64_t taps) {
    const int64_t count = words_of(channels);
    weight_of_word *to = packed;
    memset(packed, 0, (size_t)integer_packed_bytes(outputs, channels, taps));
    for (int64_t o = 0; o < outputs; ++o) {
        int32_t sum = 0;
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t tap = 0; tap < taps; ++tap) {
                const int8_t value = weight[(o * channels + c) * taps + tap];
                to[((((o / ROWS) * count + c / PER_WORD) * taps + tap) * ROWS + o % ROWS) * PER_WORD + c % PER_WORD] = value;
                sum += value;
            }
        sums[o] = sum;
    }
}

/* Interleave channels to words, with padding: (words, rows, columns, PER_WORD). flip: 128 for signed bytes, which are converted to unsigned if words are. */
static void interleave(const uint8_t *image, pixel *to, const shapes *s, int64_t rows, int64_t columns, uint8_t flip) {
    memset(to, SIGNED ? 0 : flip, (size_t)(words_of(s->channels) * rows * columns * 4));
    for (int64_t c = 0; c < s->channels; ++c)
        for (int64_t y = 0; y < s->height && y + s->top < rows; ++y) {
            const uint8_t *from = image + (c * s->height + y) * s->width;
            pixel *line = to + ((c / PER_WORD * rows + y + s->top) * columns + s->left) * PER_WORD + c % PER_WORD;
            const int64_t wide = s->width + s->left <= columns ? s->width : columns - s->left;
            for (int64_t x = 0; x < wide; ++x) line[PER_WORD * x] = (pixel)((from[x] ^ flip) - (SIGNED ? flip : 0));
        }
}

/* Sum `depth` dot products for ROWS outputs and PIXELS pixels. */
static inline __attribute__((always_inline)) void tile(const int32_t *columns, int64_t step, const int32_t *weights, int64_t depth, int32_t *out) {
    words sums[ROWS][WIDE]; /* a local array, so that it stays in registers */
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 8
        for (int at = 0; at < WIDE; ++at) sums[row][at] = everywhere(0);
    for (int64_t k = 0; k < depth; ++k) {
        words x[WIDE];
#pragma GCC unroll 8
        for (int at = 0; at < WIDE; ++at) x[at] = load(columns + k * step + LANES * at);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            const words w = everywhere(weights[k * ROWS + row]);
#pragma GCC unroll 8
            for (int at = 0; at < WIDE; ++at) sums[row][at] = multiply(sums[row][at], x[at], w);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 8
        for (int at = 0; at < WIDE; ++at) store(out + row * PIXELS + LANES * at, sums[row][at]);
}

/* Convolve one image (channels, height, width) -> (outputs, out_height, out_width). flip: 128 if the image's bytes are signed. Return 0, or 1 if out of memory. */
int integer_convolve(const uint8_t *image, const void *packed, const int32_t *weight_sums, int32_t *out, const shapes *s, uint8_t flip) {
    const int64_t count = words_of(s->channels), taps = s->kernel_h * s->kernel_w, depth = count * taps;
    const int64_t rows = (s->out_height - 1) * s->stride_h + (s->kernel_h - 1) * s->dilation_h + 1;
    const int64_t wide = (s->out_width - 1) * s->stride_w + (s->kernel_w - 1) * s->dilation_w + 1;
    const int64_t pixels = s->out_height * s->out_width;
    int64_t block = NEAR / (4 * depth) / PIXELS * PIXELS;
    if (block < PIXELS) block = PIXELS;
    if (block > (pixels + PIXELS - 1) / PIXELS * PIXELS) block = (pixels + PIXELS - 1) / PIXELS * PIXELS;
    int32_t *interleaved = malloc((size_t)(count * rows * wide * 4));
    int32_t *columns = calloc((size_t)(depth * block), 4);
    if (!interleaved || !columns) {
        free(interleaved);
        free(columns);
        return 1;
    }
    interleave(image, (pixel *)interleaved, s, rows, wide, flip);
    for (int64_t first = 0; first < pixels; first += block) {
        const int64_t some = pixels - first < block ? pixels - first : block;
        for (int64_t word = 0; word < count; ++word)
            for (int64_t tap = 0; tap < taps; ++tap) {
                int32_t *to = columns + (word * taps + tap) * block;
                const int64_t dy = tap / s->kernel_w * s->dilation_h, dx = tap % s->kernel_w * s->dilation_w;
                for (int64_t at = 0; at < some;) {
                    const int64_t y = (first + at) / s->out_width, x = (first + at) % s->out_width;
                    const int64_t run = s->out_width - x < some - at ? s->out_width - x : some - at;
                    const int32_t *from = interleaved + (word * rows + y * s->stride_h + dy) * wide + x * s->stride_w + dx;
                    if (s->stride_w == 1)
                        memcpy(to + at, from, (size_t)run * 4);
                    else
                        for (int64_t i = 0; i < run; ++i) to[at + i] = from[i * s->stride_w];
                    at += run;
                }
            }
        for (int64_t o = 0; o < s->outputs; o += ROWS)
            for (int64_t at = 0; at < some; at += PIXELS) {
                int32_t sums[ROWS * PIXELS];
                tile(columns + at, block, (const int32_t *)packed + o * depth, depth, sums);
                const int64_t left = some - at < PIXELS ? some - at : PIXELS;
                for (int row = 0; row < ROWS && o + row < s->outputs; ++row) {
                    const int32_t less = SIGNED ? 0 : flip * weight_sums[o + row];
                    int32_t *to = out + (o + row) * pixels + first + at;
                    for (int64_t i = 0; i < left; ++i) to[i] = sums[row * PIXELS + i] - less;
                }
            }
    }
    free(interleaved);
    free(columns);
    return 0;
}

/* Convolve depthwise. sign: the bytes of the image are signed. */
void integer_depthwise(const uint8_t *image, const int8_t *weight, int32_t *out, const shapes *s, int sign) {
    memset(out, 0, (size_t)(s->channels * s->out_height * s->out_width * 4));
    for (int64_t c = 0; c < s->channels; ++c)
        for (int64_t ky = 0; ky < s->kernel_h; ++ky)
            for (int64_t kx = 0; kx < s->kernel_w; ++kx) {
                const int32_t w = weight[(c * s->kernel_h + ky) * s->kernel_w + kx];
                const int64_t dx = kx * s->dilation_w - s->left;
                int64_t first = dx < 0 ? (-dx + s->stride_w - 1) / s->stride_w : 0;
                int64_t last = s->width - 1 - dx < 0 ? 0 : (s->width - 1 - dx) / s->stride_w + 1;
                if (last > s->out_width) last = s->out_width;
                for (int64_t y = 0; y < s->out_height; ++y) {
                    const int64_t row = y * s->stride_h + ky * s->dilation_h - s->top;
                    if (row < 0 || row >= s->height) continue;
                    const uint8_t *from = image + (c * s->height + row) * s->width + dx;
                    int32_t *to = out + (c * s->out_height + y) * s->out_width;
                    if (sign)
                        for (int64_t x = first; x < last; ++x) to[x] += w * (int8_t)from[x * s->stride_w];
                    else
                        for (int64_t x = first; x < last; ++x) to[x] += w * from[x * s->stride_w];
                }
            }
}

#define LINE 64 /* values requantized at once: compilers may not vectorize a shorter loop */
#define SUMS 16 /* partial sums, added in the same order on every processor */

/* Return `count` values from `from`; if only `left` exist, a copy in `room`, padded with 0. */
static inline const void *whole(const void *from, int64_t left, int64_t count, void *room) {
    if (left >= count) return from;
    memset(room, 0, (size_t)count * 4);
    return memcpy(room, from, (size_t)left * 4);
}

/* Requantize sums (channels, pixels) -> clip(round((sum + offset) * factor) + zero), each step rounded as in numpy. kind: 0 for 8 bits, whose limits are applied;
 * 1 for float32 without limits. offset, factor, low, high: per channel. */
void integer_requantize(const int32_t *sums, void *out, int64_t channels, int64_t pixels, const int32_t *offset, const float *factor, float zero, const float *low, const float *high, int kind) {
    for (int64_t c = 0; c < channels; ++c) {
        const int32_t add = offset[c];
        const float times = factor[c], least = low[c], most = high[c];
        for (int64_t first = 0; first < pixels; first += LINE) {
            const int64_t left = pixels - first, count = left < LINE ? left : LINE;
            int32_t room[LINE];
            const int32_t *from = whole(sums + c * pixels + first, left, LINE, room);
            float placed[LINE];
            for (int i = 0; i < LINE; ++i) placed[i] = rintf((float)(from[i] + add) * times) + zero;
            if (kind) {
                memcpy((float *)out + c * pixels + first, placed, (size_t)count * 4);
                continue;
            }
            uint8_t bytes[LINE];
            for (int i = 0; i < LINE; ++i) {
                const float above = placed[i] > least ? placed[i] : least;
                bytes[i] = (uint8_t)(int32_t)(above < most ? above : most);
            }
            memcpy((uint8_t *)out + c * pixels + first, bytes, (size_t)count);
        }
    }
}

/* Add 8-bit values a and b -> clip((a * times_a + b * times_b + offset) >> shift). signs: bit mask of signed operands, a (1), b (2). */
void integer_add(const uint8_t *a, const uint8_t *b, uint8_t *out, int64_t count, int32_t times_a, int32_t times_b, int32_t offset, int32_t shift, int32_t low, int32_t high, int signs) {
    for (int64_t at = 0; at < count; ++at) {
        const int32_t left = signs & 1 ? (int8_t)a[at] : a[at], right = signs & 2 ? (int8_t)b[at] : b[at];
        const int32_t sum = (left * times_a + right * times_b + offset) >> shift;
        out[at] = (uint8_t)(sum < low ? low : sum > high ? high : sum);
    }
}

/* For each channel of (value - zero) * factor + correction, count the values between the limits and sum all clipped values. */
void integer_means(const float *values, int64_t channels, int64_t pixels, float zero, const float *factor, const float *correction, const float *low, const float *high, double *active, double *total) {
    for (int64_t c = 0; c < channels; ++c) {
        const float times = factor[c], more = correction[c], least = low[c], most = high[c];
        double sums[SUMS] = {0};
        int32_t between[SUMS] = {0};
        for (int64_t first = 0; first < pixels; first += SUMS) {
            const int64_t left = pixels - first;
            float room[SUMS];
            const float *from = whole(values + c * pixels + first, left, SUMS, room);
            for (int i = 0; i < SUMS; ++i) {
                const float moved = (from[i] - zero) * times + more, above = moved > least ? moved : least, within = above < most ? above : most;
                const int32_t counts = i < left;
                between[i] += counts & (moved > least) & (moved < most);
                sums[i] += counts ? (double)within : 0.0;
            }
        }
        for (int half = SUMS / 2; half; half /= 2)
            for (int i = 0; i < half; ++i) {
                sums[i] += sums[i + half];
                between[i] += between[i + half];
            }
        active[c] = between[0];
        total[c] = sums[0];
    }
}
