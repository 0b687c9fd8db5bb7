/* What a library for Android says of itself: the API level that it needs at least, which `API` is. */
    .section .note.android.ident,"a",%note
    .balign 4
    .long 8
    .long 4
    .long 1
    .asciz "Android"
    .long API
    .section .note.GNU-stack,"",%progbits
