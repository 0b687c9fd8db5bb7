/* Declarations of bionic's netinet/in.h that the agent uses */
#ifndef TVMFLOW_BIONIC_NETINET_IN_H
#define TVMFLOW_BIONIC_NETINET_IN_H
#include <sys/socket.h>
#define IPPROTO_TCP 6
typedef uint32_t in_addr_t;
struct in_addr {
  uint32_t s_addr;
};
struct sockaddr_in {
  sa_family_t sin_family;
  uint16_t sin_port;
  struct in_addr sin_addr;
  unsigned char padding[8];
};
/* All processors of Android have the low byte first. */
#define htons(value) __builtin_bswap16(value)
#define ntohs(value) __builtin_bswap16(value)
#define htonl(value) __builtin_bswap32(value)
#define ntohl(value) __builtin_bswap32(value)
#endif
