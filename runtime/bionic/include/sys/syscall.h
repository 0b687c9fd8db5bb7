/* Declarations of bionic's sys/syscall.h that runtime/rpc uses: none, it defines its own number. */
