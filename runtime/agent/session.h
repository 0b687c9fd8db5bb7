/* One host at a time: who may speak, what it may ask for. */
#ifndef TVMFLOW_AGENT_SESSION_H
#define TVMFLOW_AGENT_SESSION_H

#include "store.h"
#include "wire.h"

#define MAX_SECRET 256

typedef struct {
  unsigned char bytes[MAX_SECRET];
  size_t size;
} secret;

/* What a session is given. root: in front of /proc and /sys, "" for this system's. unit: what the device is called, NULL for what it
 * says itself. idle_ms: how long a host may say nothing. */
typedef struct {
  store files;
  secret shared;
  const char *root, *unit;
  int idle_ms;
  int listener; /* to be closed in processes of libraries; -1 for none */
} session_rules;

/* Find out whether the other side knows the secret, and show that we do; 0 where it does. */
int session_hello(int in, int out, const secret *shared);
/* Serve requests until the host goes or breaks the protocol; ends every process that it began. */
void session_serve(int in, int out, session_rules *rules);

#endif
