/* Declarations of bionic's dlfcn.h that runtime/rpc and the agent use; its numbers differ between 64 and 32 bits. */
#ifndef TVMFLOW_BIONIC_DLFCN_H
#define TVMFLOW_BIONIC_DLFCN_H
#ifdef __LP64__
#define RTLD_NODELETE 0x1000
#define RTLD_NOW 2
#define RTLD_DEFAULT ((void *)0)
#else
#define RTLD_NODELETE 0x1000
#define RTLD_NOW 0
#define RTLD_DEFAULT ((void *)-1)
#endif
#define RTLD_LOCAL 0
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
int dlclose(void *);
char *dlerror(void);
#endif
