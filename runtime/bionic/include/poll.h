/* Declarations of bionic's poll.h that the agent uses */
#ifndef TVMFLOW_BIONIC_POLL_H
#define TVMFLOW_BIONIC_POLL_H
struct pollfd {
  int fd;
  short events, revents;
};
typedef unsigned int nfds_t;
#define POLLIN 1
#define POLLOUT 4
#define POLLERR 8
#define POLLHUP 16
#define POLLRDHUP 0x2000
int poll(struct pollfd *, nfds_t, int);
#endif
