/* Declarations of bionic's sys/prctl.h that the agent uses */
#ifndef TVMFLOW_BIONIC_SYS_PRCTL_H
#define TVMFLOW_BIONIC_SYS_PRCTL_H
#define PR_SET_PDEATHSIG 1
#define PR_SET_NAME 15
#define PR_SET_NO_NEW_PRIVS 38
int prctl(int, ...);
#endif
