/* Declarations of bionic's math.h that the runtime in C uses */
#ifndef TVMFLOW_BIONIC_MATH_H
#define TVMFLOW_BIONIC_MATH_H
double exp(double);
double fabs(double);
double sqrt(double);
#define isnan(x) __builtin_isnan(x)
#define isfinite(x) __builtin_isfinite(x)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#endif
