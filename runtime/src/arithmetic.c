/* Define the arithmetic functions that TVM's kernels for 32-bit Arm call by names which some compiler libraries lack. Each is an operator
 * in C, which compilers implement by functions of Arm's EABI. Weak, since gcc's library has both. Empty for other processors.
 */
#ifdef __arm__
#include <stdint.h>
#include <string.h>

#define WEAK __attribute__((weak))
#define AS(result, name, parameters, value) \
  WEAK result name parameters; \
  result name parameters { return value; }

AS(int32_t, __divsi3, (int32_t a, int32_t b), a / b)
AS(uint32_t, __udivsi3, (uint32_t a, uint32_t b), a / b)
AS(int32_t, __modsi3, (int32_t a, int32_t b), a % b)
AS(uint32_t, __umodsi3, (uint32_t a, uint32_t b), a % b)
AS(int64_t, __divdi3, (int64_t a, int64_t b), a / b)
AS(uint64_t, __udivdi3, (uint64_t a, uint64_t b), a / b)
AS(int64_t, __moddi3, (int64_t a, int64_t b), a % b)
AS(uint64_t, __umoddi3, (uint64_t a, uint64_t b), a % b)
AS(int64_t, __fixsfdi, (float a), (int64_t)a)
AS(int64_t, __fixdfdi, (double a), (int64_t)a)
AS(uint64_t, __fixunssfdi, (float a), (uint64_t)a)
AS(uint64_t, __fixunsdfdi, (double a), (uint64_t)a)
AS(float, __floatdisf, (int64_t a), (float)a)
AS(double, __floatdidf, (int64_t a), (double)a)
AS(float, __floatundisf, (uint64_t a), (float)a)
AS(double, __floatundidf, (uint64_t a), (double)a)

/* 16-bit floats. Floats come and go in registers of integers here, whatever other functions do. */
#define IN_INTEGERS WEAK __attribute__((pcs("aapcs")))

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static float of_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

IN_INTEGERS float __gnu_h2f_ieee(uint16_t half);
IN_INTEGERS float __gnu_h2f_ieee(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  return of_bits(sign | bits_of((float)fraction / 16777216)); /* a multiple of 2^-24 */
}

IN_INTEGERS uint16_t __gnu_f2h_ieee(float number);
IN_INTEGERS uint16_t __gnu_f2h_ieee(float number) {
  const uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                                              /* 65520 and above */
  if (size < 0x38800000) return (uint16_t)(sign | (bits_of(of_bits(size) + 0.5f) - 0x3f000000)); /* the sum's last place is 2^-24 */
  return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}

/* Handle a division by zero, which does not occur here: gcc's would raise a signal. */
AS(int, __aeabi_idiv0, (int result), result)
AS(long long, __aeabi_ldiv0, (long long result), result)

/* Without unwind tables, which would require the compiler's library. */
WEAK void __aeabi_unwind_cpp_pr0(void);
void __aeabi_unwind_cpp_pr0(void) {}
#endif
