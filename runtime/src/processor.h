/* Whether this processor has the instructions that the kernels were compiled with. */
#ifndef TVMFLOW_PROCESSOR_H
#define TVMFLOW_PROCESSOR_H

/* Return the first of the network's flags (names as in /proc/cpuinfo) that this processor or system lacks; NULL if it lacks none. */
const char *processor_lacks(void);

#endif
