/* What a device says of itself. */
#ifndef TVMFLOW_AGENT_PROBE_H
#define TVMFLOW_AGENT_PROBE_H

#include "store.h"
#include "wire.h"

/* Add members to a reply; root: in front of /proc and /sys. What the system does not say is left out. */
void probe(text *reply, const char *root, const char *unit, const store *files);
void probe_temperatures(text *reply, const char *root);

#endif
