/* Declarations of bionic's arpa/inet.h that the agent uses */
#ifndef TVMFLOW_BIONIC_ARPA_INET_H
#define TVMFLOW_BIONIC_ARPA_INET_H
#include <netinet/in.h>
int inet_pton(int, const char *, void *);
#endif
