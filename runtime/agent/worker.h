/* Each library runs in a separate process, so that its failures do not affect the agent. */
#ifndef TVMFLOW_AGENT_WORKER_H
#define TVMFLOW_AGENT_WORKER_H

#include "store.h"
#include "wire.h"

/* Serve one library on a socket until it is closed, in a forked process; never return. */
_Noreturn void worker_serve(int socket, const store *files);

/* Begin a reply with "status" and "text". */
void say(text *reply, const char *status, const char *words);

#endif
