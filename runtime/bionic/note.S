/* The ELF note of a library for Android: the minimum API level, `API`. */
    .section .note.android.ident,"a",%note
    .balign 4
    .long 8
    .long 4
    .long 1
    .asciz "Android"
    .long API
    .section .note.GNU-stack,"",%progbits
