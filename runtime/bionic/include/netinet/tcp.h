/* Declarations of bionic's netinet/tcp.h that the agent uses */
#ifndef TVMFLOW_BIONIC_NETINET_TCP_H
#define TVMFLOW_BIONIC_NETINET_TCP_H
#define TCP_NODELAY 1
#define TCP_KEEPIDLE 4
#define TCP_KEEPINTVL 5
#define TCP_KEEPCNT 6
#define TCP_USER_TIMEOUT 18
#endif
