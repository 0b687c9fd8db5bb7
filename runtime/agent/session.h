/* Serve one host at a time: authentication and requests. */
#ifndef TVMFLOW_AGENT_SESSION_H
#define TVMFLOW_AGENT_SESSION_H

#include "store.h"
#include "wire.h"

#define MAX_SECRET 256

typedef struct {
  unsigned char bytes[MAX_SECRET];
  size_t size;
} secret;

/* The parameters of a session. root: prefix of /proc and /sys, "" for this system's. unit: the device's given name, NULL for its own.
 * idle_ms: how long a host may be silent. */
typedef struct {
  store files;
  secret shared;
  const char *root, *unit;
  int idle_ms;
  int listener; /* closed in processes of libraries; -1 for none */
} session_rules;

/* Authenticate both sides by the secret; return 0 on success. */
int session_hello(int in, int out, const secret *shared);
/* Serve requests until the host disconnects or violates the protocol; then end all started processes. */
void session_serve(int in, int out, session_rules *rules);

#endif
