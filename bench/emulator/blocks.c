/* A plugin of qemu-user that writes the blocks of instructions which a program executes, with argument out=FILE.
 *
 * At each system call COUNTERS_CALL (runtime/emulator/count.c) the blocks executed since the last one go to FILE-0, FILE-1, ...: a
 * line for each block with how often it ran, its number of instructions, and their bytes in hexadecimal. The call counts instructions
 * only; the other counters are zero.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNTERS_CALL 7201
#define EXPORTED __attribute__((visibility("default")))
enum { BUCKETS = 1 << 16, LONGEST = 16 /* bytes of an instruction */, COUNTERS = 7 };
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int flags, void *);
void qemu_plugin_register_vcpu_syscall_cb(
    plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
/* Gone from version 3 on, where a call for each block takes its place. */
__attribute__((weak)) void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
/* Until version 2 it returns a pointer; from 3 on it copies. Both are called with three arguments: the first takes what it needs. */
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);

EXPORTED int qemu_plugin_version = 1;

typedef struct block {
  struct block *next;
  uint64_t at, count;
  size_t instructions, size;
  uint8_t code[];
} block;

static block *buckets[BUCKETS];
static const char *place;
static unsigned calls;
static uint64_t executed;

static void on_block(unsigned cpu, void *data) {
  (void)cpu;
  ++((block *)data)->count;
}

static block *block_of(struct qemu_plugin_tb *tb) {
  size_t instructions = qemu_plugin_tb_n_insns(tb), size = 0;
  uint8_t code[instructions * LONGEST];
  for (size_t i = 0; i < instructions; ++i) {
    const struct qemu_plugin_insn *one = qemu_plugin_tb_get_insn(tb, i);
    size_t bytes = qemu_plugin_insn_size(one);
    if (bytes > LONGEST) abort();
    if (&qemu_plugin_register_vcpu_tb_exec_inline) memcpy(code + size, qemu_plugin_insn_data(one, NULL, 0), bytes);
    else qemu_plugin_insn_data(one, code + size, bytes);
    size += bytes;
  }
  uint64_t at = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
  block **bucket = &buckets[at / 2 % BUCKETS];
  for (block *one = *bucket; one; one = one->next)
    if (one->at == at && one->size == size && !memcmp(one->code, code, size)) return one;
  block *made = calloc(1, sizeof *made + size);
  if (!made) abort();
  made->next = *bucket, made->at = at, made->instructions = instructions, made->size = size;
  memcpy(made->code, code, size);
  return *bucket = made;
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *tb) {
  (void)id;
  block *one = block_of(tb);
  if (&qemu_plugin_register_vcpu_tb_exec_inline)
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &one->count, 1);
  else
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, 0, one);
}

static void write_blocks(void) {
  char name[4096];
  snprintf(name, sizeof name, "%s-%u", place, calls++);
  FILE *file = fopen(name, "w");
  if (!file) abort();
  for (size_t at = 0; at < BUCKETS; ++at)
    for (block *one = buckets[at]; one; one = one->next) {
      if (!one->count) continue;
      fprintf(file, "%lu %zu ", (unsigned long)one->count, one->instructions);
      for (size_t i = 0; i < one->size; ++i) fprintf(file, "%02x", one->code[i]);
      fputc('\n', file);
      executed += one->count * one->instructions;
      one->count = 0;
    }
  if (fclose(file)) abort();
}

static void on_syscall(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                       uint64_t g, uint64_t h) {
  (void)id, (void)cpu, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  if (number != COUNTERS_CALL) return;
  write_blocks();
  uint64_t counters[COUNTERS] = {executed};
  memcpy((void *)(uintptr_t)a, counters, b < sizeof counters ? b : sizeof counters);
}

EXPORTED int qemu_plugin_install(plugin_id id, const void *info, int count, char **words) {
  (void)info;
  for (int i = 0; i < count; ++i)
    if (!strncmp(words[i], "out=", 4)) place = strdup(words[i] + 4);
  if (!place) return fprintf(stderr, "blocks: out=FILE is missing\n"), 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
  return 0;
}
