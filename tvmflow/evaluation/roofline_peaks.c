/* Measure the peak rates of a core: operations in registers by the widest instructions that it is compiled for, bytes read from a buffer.
 *
 * Each function does its work on the thread that calls it and returns how much that was. A type without a function of its own has float32's instructions.
 */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define SUMS 12 /* more than an instruction's latency times how many start in a cycle */
#define KEEP(value) __asm__ volatile("" : "+v"(value)) /* so that it is computed, each time, each by itself */
#define EACH(what, how) \
    what(s0, how) what(s1, how) what(s2, how) what(s3, how) what(s4, how) what(s5, how) \
    what(s6, how) what(s7, how) what(s8, how) what(s9, how) what(s10, how) what(s11, how)
#define START(sum, type) type sum = {0}; KEEP(sum);
#define STEP(sum, how) KEEP(a); sum = how(sum);
#define END(sum, _) KEEP(sum);

/* how: what adds a product of a and b to a sum; operations: that it does. */
#define CEILING(name, sums, factors, operations, how)    \
    double ceiling_##name(long rounds) {                 \
        factors a = {0}, b = {0};                        \
        KEEP(b);                                         \
        EACH(START, sums)                                \
        for (long round = 0; round < rounds; ++round) {  \
            EACH(STEP, how)                              \
        }                                                \
        EACH(END, _)                                     \
        return (double)(operations) * SUMS * rounds;     \
    }

#ifdef __AVX512F__
typedef __m512 values;
#define ADD_FLOAT32(sum) _mm512_fmadd_ps(a, b, sum)
#else
typedef __m256 values;
#define ADD_FLOAT32(sum) _mm256_fmadd_ps(a, b, sum)
#endif
CEILING(float32, values, values, 2 * sizeof(values) / 4, ADD_FLOAT32)

#ifdef __AVX512FP16__
#define ADD_FLOAT16(sum) _mm512_fmadd_ph(a, b, sum)
CEILING(float16, __m512h, __m512h, 2 * 32, ADD_FLOAT16)
#endif

#if defined(__AMX_INT8__) || defined(__AMX_BF16__)
#define TILES 6
long syscall(long number, ...);

/* Ask the kernel for the permission (Linux: arch_prctl, ARCH_REQ_XCOMP_PERM), and give all registers 16 rows of 64 bytes, zeros. */
static void configure(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; ++i) shapes.colsb[i] = 64, shapes.rows[i] = 16;
    syscall(158, 0x1023, 18);
    _tile_loadconfig(&shapes);
}

#define TILE_CEILING(name, operations, multiply)                                     \
    double ceiling_##name(long rounds) {                                             \
        configure();                                                                 \
        for (long round = 0; round < rounds / 16; ++round) { /* they take 16 cycles */ \
            multiply(0, 6, 7);                                                       \
            multiply(1, 6, 7);                                                       \
            multiply(2, 6, 7);                                                       \
            multiply(3, 6, 7);                                                       \
            multiply(4, 6, 7);                                                       \
            multiply(5, 6, 7);                                                       \
        }                                                                            \
        _tile_release();                                                             \
        return (double)(operations) * TILES * (rounds / 16);                         \
    }
#endif

#if defined(__AMX_BF16__)
TILE_CEILING(bfloat16, 2 * 16 * 16 * 32, _tile_dpbf16ps)
#elif defined(__AVX512BF16__)
#define ADD_BFLOAT16(sum) _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b)
CEILING(bfloat16, __m512, __m512i, 2 * 32, ADD_BFLOAT16)
#endif

#if defined(__AMX_INT8__)
TILE_CEILING(int8, 2 * 16 * 16 * 64, _tile_dpbusd)
#elif defined(__AVX512VNNI__)
#define ADD_INT8(sum) _mm512_dpbusd_epi32(sum, a, b)
CEILING(int8, __m512i, __m512i, 2 * 64, ADD_INT8)
#elif defined(__AVXVNNI__)
#define ADD_INT8(sum) _mm256_dpbusd_avx_epi32(sum, a, b)
CEILING(int8, __m256i, __m256i, 2 * 32, ADD_INT8)
#else
#define ADD_INT8(sum) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
CEILING(int8, __m256i, __m256i, 2 * 16, ADD_INT8)
#endif

/* data: aligned to 64 bytes; count: of its values, a multiple of 192 (12 registers of 16); passes: over all of them. */
#define ADD_NEXT(sum, _) sum += *at++;

double ceiling_read(const float *data, long count, long passes) {
    EACH(START, values)
    for (long pass = 0; pass < passes; ++pass)
        for (const values *at = (const values *)data, *end = (const values *)(data + count); at < end;) {
            EACH(ADD_NEXT, _)
        }
    EACH(END, _)
    return 4.0 * count * passes;
}
