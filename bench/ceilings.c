/* What this machine's cores multiply and read at most: operations a second in registers, bytes a second of a buffer that no cache holds. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <omp.h>

#define SUMS 12
#define KEEP(value) __asm__ volatile("" : "+v"(value)) /* so that it is computed, each time */
#define KEEP_ALL(sums) for (int i = 0; i < SUMS; ++i) KEEP((sums)[i]) /* and each by itself */

#ifdef __AVX512F__
typedef __m512 values;
#define MULTIPLY_ADD _mm512_fmadd_ps
#else
typedef __m256 values;
#define MULTIPLY_ADD _mm256_fmadd_ps
#endif

/* Each returns the operations, or bytes, of a call with so many threads. */

double ceiling_float32(int threads, long rounds) {
#pragma omp parallel num_threads(threads)
    {
        values sum[SUMS] = {{0}}, a = {0}, b = {0};
        KEEP_ALL(sum);
        KEEP(b);
        for (long round = 0; round < rounds; ++round) {
            KEEP(a);
            for (int i = 0; i < SUMS; ++i) sum[i] = MULTIPLY_ADD(a, b, sum[i]);
        }
        KEEP_ALL(sum);
    }
    return 2.0 * sizeof(values) / 4 * SUMS * rounds * threads;
}

double ceiling_bfloat16(int threads, long rounds) {
#ifdef __AVX512BF16__
#pragma omp parallel num_threads(threads)
    {
        __m512 sum[SUMS];
        __m512i a = _mm512_setzero_si512(), b = a;
        for (int i = 0; i < SUMS; ++i) sum[i] = _mm512_setzero_ps();
        KEEP_ALL(sum);
        KEEP(b);
        for (long round = 0; round < rounds; ++round) {
            KEEP(a);
            for (int i = 0; i < SUMS; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)a, (__m512bh)b);
        }
        KEEP_ALL(sum);
    }
    return 2.0 * 32 * SUMS * rounds * threads;
#else
    (void)threads, (void)rounds;
    return 0;
#endif
}

double ceiling_int8(int threads, long rounds) {
#ifdef __AVX512VNNI__
#pragma omp parallel num_threads(threads)
    {
        __m512i sum[SUMS], a = _mm512_setzero_si512(), b = a;
        for (int i = 0; i < SUMS; ++i) sum[i] = _mm512_setzero_si512();
        KEEP_ALL(sum);
        KEEP(b);
        for (long round = 0; round < rounds; ++round) {
            KEEP(a);
            for (int i = 0; i < SUMS; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
        }
        KEEP_ALL(sum);
    }
    return 2.0 * 64 * SUMS * rounds * threads;
#else
    (void)threads, (void)rounds;
    return 0;
#endif
}

double ceiling_read(int threads, const float *data, long values_read) {
#pragma omp parallel num_threads(threads)
    {
        long share = values_read / threads / 64 * 64, first = share * omp_get_thread_num();
        values sum[SUMS] = {{0}};
        KEEP_ALL(sum);
        const long step = sizeof(values) / sizeof(float);
        for (long at = first; at + SUMS * step <= first + share; at += SUMS * step)
            for (int i = 0; i < SUMS; ++i) sum[i] += *(const values *)(data + at + step * i);
        KEEP_ALL(sum);
    }
    return 4.0 * (values_read / threads / 64 * 64) * threads;
}
