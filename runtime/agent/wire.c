/* Read and write frames, texts and requests. */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TOGETHER 4096

uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t whole_ms(size_t size) { return STALLED_MS + size / SLOWEST; }

static wire_status wait_until(int fd, short events, uint64_t end_ms) {
  for (;;) {
    const uint64_t now = now_ms();
    struct pollfd waiting = {fd, events, 0};
    const int found = poll(&waiting, 1, now < end_ms ? (int)(end_ms - now) : 0);
    if (found < 0 && errno == EINTR) continue;
    return found < 0 ? WIRE_END : found ? WIRE_OK : WIRE_LATE;
  }
}

wire_status wire_read_until(int fd, void *bytes, size_t size, uint64_t end_ms) {
  unsigned char *at = bytes;
  while (size) {
    wire_status status = wait_until(fd, POLLIN, end_ms);
    if (status) return status;
    ssize_t count = read(fd, at, size);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return WIRE_END;
    at += count;
    size -= (size_t)count;
  }
  return WIRE_OK;
}

wire_status wire_read(int fd, void *bytes, size_t size, int first_ms) {
  struct pollfd waiting = {fd, POLLIN, 0};
  int found = 1;
  if (first_ms < 0) {
    do found = poll(&waiting, 1, -1);
    while (found < 0 && errno == EINTR);
    if (found < 0) return WIRE_END;
  } else {
    wire_status status = wait_until(fd, POLLIN, now_ms() + (uint64_t)first_ms);
    if (status) return status;
  }
  return wire_read_until(fd, bytes, size, now_ms() + whole_ms(size));
}

wire_status wire_write(int fd, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  const uint64_t end_ms = now_ms() + whole_ms(size);
  while (size) {
    wire_status status = wait_until(fd, POLLOUT, end_ms);
    if (status) return status;
    ssize_t count = send(fd, at, size, MSG_DONTWAIT); /* a blocking write would wait for room for all of it */
    if (count < 0 && errno == ENOTSOCK) count = write(fd, at, size);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return WIRE_END;
    at += count;
    size -= (size_t)count;
  }
  return WIRE_OK;
}

wire_status frame_read_head(int fd, frame_head *head, int first_ms) {
  unsigned char raw[HEAD_SIZE];
  wire_status status = wire_read(fd, raw, sizeof raw, first_ms);
  if (status) return status;
  *head = (frame_head){raw[0], raw[1], raw[4] | (uint32_t)raw[5] << 8 | (uint32_t)raw[6] << 16 | (uint32_t)raw[7] << 24};
  if (raw[2] || raw[3] || head->kind < FRAME_REQUEST || head->kind > FRAME_REPLY) return WIRE_BAD;
  return head->size <= (head->kind == FRAME_REQUEST ? MAX_REQUEST : MAX_DATA) ? WIRE_OK : WIRE_BAD;
}

wire_status frame_write(int fd, frame_kind kind, uint8_t worker, const void *bytes, size_t size) {
  /* Short frames are sent with their head: adb waits for the host after each write. */
  unsigned char raw[HEAD_SIZE + TOGETHER] = {
      (unsigned char)kind, worker, 0, 0, (unsigned char)size, (unsigned char)(size >> 8), (unsigned char)(size >> 16), (unsigned char)(size >> 24)};
  size_t with = size <= TOGETHER ? size : 0;
  if (size > MAX_DATA) return WIRE_BAD;
  if (with) memcpy(raw + HEAD_SIZE, bytes, with);
  wire_status status = wire_write(fd, raw, HEAD_SIZE + with);
  return status || with == size ? status : wire_write(fd, bytes, size);
}

void text_add(text *made, const char *format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  int count = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (count < 0 || (size_t)count >= sizeof line || made->cut) {
    made->cut = 1;
    return;
  }
  if (made->used + (size_t)count + 1 > made->room) {
    size_t room = made->room ? 2 * made->room : 4096;
    char *at = room <= MAX_DATA ? realloc(made->at, room) : NULL;
    if (!at) {
      made->cut = 1;
      return;
    }
    made->at = at;
    made->room = room;
  }
  memcpy(made->at + made->used, line, (size_t)count + 1);
  made->used += (size_t)count;
}

void text_add_string(text *made, const char *string) {
  text_add(made, "\"");
  for (const char *at = string; *at; ++at) {
    if (*at == '"' || *at == '\\') text_add(made, "\\%c", *at);
    else text_add(made, "%c", *at >= 32 && *at < 127 ? *at : '?');
  }
  text_add(made, "\"");
}

void text_free(text *made) {
  free(made->at);
  *made = (text){0};
}

static int is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

/* Terminate a word in place; return the text behind it, NULL if the word is empty. */
static char *end_word(char *at) {
  char *end = at;
  while (is_plain(*end)) ++end;
  return end == at ? NULL : end;
}

int request_parse(request *made, const void *bytes, size_t size) {
  made->count = 0;
  if (!size || size > MAX_REQUEST || memchr(bytes, 0, size)) return -1;
  memcpy(made->bytes, bytes, size);
  made->bytes[size] = 0;
  made->name = made->bytes;
  char *at = end_word(made->bytes);
  while (at && *at == ' ') {
    *at++ = 0;
    if (made->count == sizeof made->fields / sizeof *made->fields) return -1;
    char *equals = end_word(at);
    char *end = equals && *equals == '=' ? end_word(equals + 1) : NULL;
    if (!end) return -1;
    *equals = 0;
    made->fields[made->count].key = at;
    made->fields[made->count++].value = equals + 1;
    at = end;
  }
  return at && !*at ? 0 : -1;
}

const char *request_value(const request *asked, const char *key) {
  for (unsigned i = 0; i < asked->count; ++i)
    if (!strcmp(asked->fields[i].key, key)) return asked->fields[i].value;
  return NULL;
}

int request_number(const request *asked, const char *key, uint64_t low, uint64_t high, uint64_t otherwise, uint64_t *found) {
  const char *value = request_value(asked, key);
  *found = otherwise;
  if (!value) return 0;
  uint64_t number = 0;
  for (; *value; ++value) {
    if (*value < '0' || *value > '9' || number > (UINT64_MAX - 9) / 10) return -1;
    number = number * 10 + (uint64_t)(*value - '0');
  }
  *found = number;
  return number >= low && number <= high ? 0 : -1;
}
