/* The facts of a device. */
#ifndef TVMFLOW_AGENT_PROBE_H
#define TVMFLOW_AGENT_PROBE_H

#include "store.h"
#include "wire.h"

/* Add members to a reply; root: prefix of /proc and /sys. Unknown facts are omitted. */
void probe(text *reply, const char *root, const char *unit, const store *files);
void probe_temperatures(text *reply, const char *root);

#endif
