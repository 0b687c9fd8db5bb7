/* Declarations of bionic's elf.h that the agent uses: what files of 64 and of 32 bits begin with. */
#ifndef TVMFLOW_BIONIC_ELF_H
#define TVMFLOW_BIONIC_ELF_H
#define ELFMAG "\177ELF"
#define SELFMAG 4
#define ELFCLASS64 2
#define EI_CLASS 4
#define EM_386 3
#define EM_ARM 40
#define EM_X86_64 62
#define EM_AARCH64 183
#define EM_RISCV 243
#endif
