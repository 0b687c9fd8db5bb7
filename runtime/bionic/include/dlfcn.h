/* What runtime/rpc uses of bionic's dlfcn.h; its numbers are those of the ABIs of 64 bits. */
#ifndef TVMFLOW_BIONIC_DLFCN_H
#define TVMFLOW_BIONIC_DLFCN_H
#define RTLD_NOW 2
#define RTLD_LOCAL 0
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
int dlclose(void *);
char *dlerror(void);
#endif
