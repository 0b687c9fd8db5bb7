/* Begin a program of Android: what an NDK's crtbegin_dynamic.o does for one without constructors and destructors of its own.
 *
 * bionic's linker has run the constructors of all libraries. The first word of the stack is the count of arguments.
 */
extern int main(int, char **, char **);
/* arrays: of functions to run at exit, and their counts, in a structure that has grown; none is read if the pointers are null. */
extern _Noreturn void __libc_init(void *stack, void (*unused)(void), int (*program)(int, char **, char **), const void *arrays);

__attribute__((used, visibility("hidden"))) _Noreturn void tvmflow_begin(void *stack) {
  static void *const none[8];
  __libc_init(stack, 0, main, none);
}

#if defined __aarch64__
__asm__(".text\n.globl _start\n.type _start,%function\n_start: mov x29, #0\n mov x30, #0\n mov x0, sp\n b tvmflow_begin\n");
#elif defined __arm__
__asm__(".text\n.globl _start\n.type _start,%function\n_start: mov fp, #0\n mov lr, #0\n mov r0, sp\n b tvmflow_begin\n");
#elif defined __x86_64__
__asm__(".text\n.globl _start\n.type _start,%function\n_start: xorl %ebp, %ebp\n movq %rsp, %rdi\n andq $-16, %rsp\n call tvmflow_begin\n");
#else
#error no start for this processor
#endif
