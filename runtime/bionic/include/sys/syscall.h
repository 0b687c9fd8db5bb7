/* What runtime/rpc uses of bionic's sys/syscall.h: nothing, it has a number of its own. */
