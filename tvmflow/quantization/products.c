/* Convolutions of bytes, summed exactly in 32 bits by AVX-512's instruction for products of unsigned and signed bytes, and what follows them.
 *
 * What tvmflow/ir/definition.py does in numpy, bit for bit, several times as fast. Sums wrap nowhere: 2^16 products of bytes fit.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 6      /* outputs that are summed at once */
#define WIDE 4      /* registers of 16 pixels each */
#define PIXELS (16 * WIDE)
#define NEAR (128 << 10) /* bytes of columns: they stay in the cache of a core */

typedef struct {
    int64_t channels, height, width; /* of the image */
    int64_t outputs, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top, left;
} shapes;

/* Weights (outputs, channels, kernel_h, kernel_w) -> (outputs / ROWS, channels / 4, kernel_h, kernel_w, ROWS, 4), and the sum of each output's. */
void products_pack(const int8_t *weight, int8_t *packed, int32_t *sums, int64_t outputs, int64_t channels, int64_t taps) {
    const int64_t fours = (channels + 3) / 4;
    memset(packed, 0, (size_t)((outputs + ROWS - 1) / ROWS * ROWS * fours * 4 * taps));
    for (int64_t o = 0; o < outputs; ++o) {
        int32_t sum = 0;
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t tap = 0; tap < taps; ++tap) {
                const int8_t value = weight[(o * channels + c) * taps + tap];
                packed[((((o / ROWS) * fours + c / 4) * taps + tap) * ROWS + o % ROWS) * 4 + c % 4] = value;
                sum += value;
            }
        sums[o] = sum;
    }
}

/* Channels by four beside each other, with padding around: (channels / 4, rows, columns, 4). flip: 128 for signed bytes, which become unsigned. */
static void interleave(const uint8_t *image, uint8_t *fours, const shapes *s, int64_t rows, int64_t columns, uint8_t flip) {
    memset(fours, flip, (size_t)((s->channels + 3) / 4 * rows * columns * 4));
    for (int64_t c = 0; c < s->channels; ++c)
        for (int64_t y = 0; y < s->height && y + s->top < rows; ++y) {
            const uint8_t *from = image + (c * s->height + y) * s->width;
            uint8_t *to = fours + ((c / 4 * rows + y + s->top) * columns + s->left) * 4 + c % 4;
            const int64_t wide = s->width + s->left <= columns ? s->width : columns - s->left;
            for (int64_t x = 0; x < wide; ++x) to[4 * x] = from[x] ^ flip;
        }
}

/* Sums of `depth` fours of products, for ROWS outputs and PIXELS pixels. */
static inline __attribute__((always_inline)) void tile(const int32_t *columns, int64_t step, const int32_t *weights, int64_t depth, __m512i *out) {
    __m512i sums[ROWS][WIDE]; /* of its own, so that it stays in registers */
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 8
        for (int at = 0; at < WIDE; ++at) sums[row][at] = _mm512_setzero_si512();
    for (int64_t k = 0; k < depth; ++k) {
        __m512i x[WIDE];
#pragma GCC unroll 8
        for (int at = 0; at < WIDE; ++at) x[at] = _mm512_loadu_si512(columns + k * step + 16 * at);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            const __m512i w = _mm512_set1_epi32(weights[k * ROWS + row]);
#pragma GCC unroll 8
            for (int at = 0; at < WIDE; ++at) sums[row][at] = _mm512_dpbusd_epi32(sums[row][at], x[at], w);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 8
        for (int at = 0; at < WIDE; ++at) out[row * WIDE + at] = sums[row][at];
}

/* One image (channels, height, width) -> (outputs, out_height, out_width). flip: 128 where the image's bytes are signed. Returns 0, or 1 without memory. */
int products_convolve(const uint8_t *image, const int8_t *packed, const int32_t *weight_sums, int32_t *out, const shapes *s, uint8_t flip) {
    const int64_t fours = (s->channels + 3) / 4, taps = s->kernel_h * s->kernel_w, depth = fours * taps;
    const int64_t rows = (s->out_height - 1) * s->stride_h + (s->kernel_h - 1) * s->dilation_h + 1;
    const int64_t wide = (s->out_width - 1) * s->stride_w + (s->kernel_w - 1) * s->dilation_w + 1;
    const int64_t pixels = s->out_height * s->out_width;
    int64_t block = NEAR / (4 * depth) / PIXELS * PIXELS;
    if (block < PIXELS) block = PIXELS;
    if (block > (pixels + PIXELS - 1) / PIXELS * PIXELS) block = (pixels + PIXELS - 1) / PIXELS * PIXELS;
    uint8_t *interleaved = malloc((size_t)(fours * rows * wide * 4));
    int32_t *columns = calloc((size_t)(depth * block), 4);
    if (!interleaved || !columns) {
        free(interleaved);
        free(columns);
        return 1;
    }
    interleave(image, interleaved, s, rows, wide, flip);
    for (int64_t first = 0; first < pixels; first += block) {
        const int64_t count = pixels - first < block ? pixels - first : block;
        for (int64_t four = 0; four < fours; ++four)
            for (int64_t tap = 0; tap < taps; ++tap) {
                int32_t *to = columns + (four * taps + tap) * block;
                const int64_t dy = tap / s->kernel_w * s->dilation_h, dx = tap % s->kernel_w * s->dilation_w;
                for (int64_t at = 0; at < count;) {
                    const int64_t y = (first + at) / s->out_width, x = (first + at) % s->out_width;
                    const int64_t run = s->out_width - x < count - at ? s->out_width - x : count - at;
                    const int32_t *from = (const int32_t *)interleaved + (four * rows + y * s->stride_h + dy) * wide + x * s->stride_w + dx;
                    if (s->stride_w == 1)
                        memcpy(to + at, from, (size_t)run * 4);
                    else
                        for (int64_t i = 0; i < run; ++i) to[at + i] = from[i * s->stride_w];
                    at += run;
                }
            }
        for (int64_t o = 0; o < s->outputs; o += ROWS)
            for (int64_t at = 0; at < count; at += PIXELS) {
                __m512i sums[ROWS * WIDE];
                tile(columns + at, block, (const int32_t *)packed + o * depth, depth, sums);
                for (int row = 0; row < ROWS && o + row < s->outputs; ++row) {
                    const __m512i less = _mm512_set1_epi32(flip * weight_sums[o + row]);
                    for (int i = 0; i < WIDE && at + 16 * i < count; ++i) {
                        const int64_t left = count - at - 16 * i;
                        const __mmask16 some = left >= 16 ? 0xFFFF : (__mmask16)((1u << left) - 1);
                        _mm512_mask_storeu_epi32(out + (o + row) * pixels + first + at + 16 * i, some, _mm512_sub_epi32(sums[row * WIDE + i], less));
                    }
                }
            }
    }
    free(interleaved);
    free(columns);
    return 0;
}

/* Each channel by a filter of its own. sign: bytes of the image are signed. */
void products_each(const uint8_t *image, const int8_t *weight, int32_t *out, const shapes *s, int sign) {
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

/* Sums (channels, pixels) -> clip(round((sum + offset) * factor) + zero), each step rounded as in numpy. kind: 0 for bytes, which the limits make fit;
 * 1 for float32 without limits. offset, factor, low, high: of each channel. */
void products_finish(const int32_t *sums, void *out, int64_t channels, int64_t pixels, const int32_t *offset, const float *factor, float zero, const float *low, const float *high, int kind) {
    const __m512 zeros = _mm512_set1_ps(zero);
    for (int64_t c = 0; c < channels; ++c) {
        const __m512i add = _mm512_set1_epi32(offset[c]);
        const __m512 times = _mm512_set1_ps(factor[c]), least = _mm512_set1_ps(low[c]), most = _mm512_set1_ps(high[c]);
        for (int64_t at = c * pixels; at < (c + 1) * pixels; at += 16) {
            const int64_t left = (c + 1) * pixels - at;
            const __mmask16 some = left >= 16 ? 0xFFFF : (__mmask16)((1u << left) - 1);
            const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_maskz_loadu_epi32(some, sums + at), add)), times);
            const __m512 placed = _mm512_add_ps(_mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), zeros);
            if (kind)
                _mm512_mask_storeu_ps((float *)out + at, some, placed);
            else
                _mm512_mask_cvtepi32_storeu_epi8((uint8_t *)out + at, some, _mm512_cvttps_epi32(_mm512_min_ps(_mm512_max_ps(placed, least), most)));
        }
    }
}

/* Bytes a and b -> clip((a * times_a + b * times_b + offset) >> shift). signs: of a (1), b (2). */
void products_add(const uint8_t *a, const uint8_t *b, uint8_t *out, int64_t count, int32_t times_a, int32_t times_b, int32_t offset, int32_t shift, int32_t low, int32_t high, int signs) {
    for (int64_t at = 0; at < count; ++at) {
        const int32_t left = signs & 1 ? (int8_t)a[at] : a[at], right = signs & 2 ? (int8_t)b[at] : b[at];
        const int32_t sum = (left * times_a + right * times_b + offset) >> shift;
        out[at] = (uint8_t)(sum < low ? low : sum > high ? high : sum);
    }
}

/* Values (channels, pixels) -> of each channel, of (value - zero) * factor + correction: how many lie between the limits, and the sum of all within them. */
void products_means(const float *values, int64_t channels, int64_t pixels, float zero, const float *factor, const float *correction, const float *low, const float *high, double *active, double *total) {
    for (int64_t c = 0; c < channels; ++c) {
        const __m512 less = _mm512_set1_ps(zero), times = _mm512_set1_ps(factor[c]), more = _mm512_set1_ps(correction[c]);
        const __m512 least = _mm512_set1_ps(low[c]), most = _mm512_set1_ps(high[c]);
        __m512d first = _mm512_setzero_pd(), second = _mm512_setzero_pd();
        int64_t count = 0;
        for (int64_t at = 0; at < pixels; at += 16) {
            const int64_t left = pixels - at;
            const __mmask16 some = left >= 16 ? 0xFFFF : (__mmask16)((1u << left) - 1);
            const __m512 value = _mm512_maskz_loadu_ps(some, values + c * pixels + at);
            const __m512 moved = _mm512_add_ps(_mm512_mul_ps(_mm512_sub_ps(value, less), times), more);
            count += __builtin_popcount(some & _mm512_cmp_ps_mask(moved, least, _CMP_GT_OQ) & _mm512_cmp_ps_mask(moved, most, _CMP_LT_OQ));
            const __m512 within = _mm512_maskz_min_ps(some, _mm512_max_ps(moved, least), most);
            first = _mm512_add_pd(first, _mm512_cvtps_pd(_mm512_castps512_ps256(within)));
            second = _mm512_add_pd(second, _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(within), 1))));
        }
        active[c] = (double)count;
        total[c] = _mm512_reduce_add_pd(_mm512_add_pd(first, second));
    }
}
