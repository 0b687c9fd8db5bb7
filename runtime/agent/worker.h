/* A process of its own for each library: what it does wrong costs nothing but itself. */
#ifndef TVMFLOW_AGENT_WORKER_H
#define TVMFLOW_AGENT_WORKER_H

#include "store.h"
#include "wire.h"

/* Serve one library on a socket until it is closed, in a process that was forked for it; never returns. */
_Noreturn void worker_serve(int socket, const store *files);

/* Add "status" and "text" to a reply that begins. */
void say(text *reply, const char *status, const char *words);

#endif
