/* Declarations of bionic's sys/auxv.h that the runtime in C uses. */
#ifndef TVMFLOW_BIONIC_AUXV_H
#define TVMFLOW_BIONIC_AUXV_H
#define AT_HWCAP 16
#define AT_HWCAP2 26
unsigned long getauxval(unsigned long);
#endif
