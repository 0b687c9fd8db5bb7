/* What host and agent say to each other: frames of bounded size, read and written within bounded times. */
#ifndef TVMFLOW_AGENT_WIRE_H
#define TVMFLOW_AGENT_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* Raised with every change of what is said; both sides name theirs first. */
#define AGENT_VERSION 1
#define AGENT_MAGIC "tvmflow agent\n\0" /* 16 bytes with the closing zero */
#define MAGIC_SIZE 16
#define NONCE_SIZE 32

#define MAX_REQUEST 1024u        /* bytes of a request's text */
#define MAX_DATA (1u << 20)      /* bytes of a frame of data, and of a reply's text */
#define MAX_FILE (8ull << 30)    /* bytes of an upload */
#define STALLED_MS 30000         /* how long the rest of a frame may take to go on */
#define HELLO_MS 10000           /* how long a host has to say who it is */

typedef enum { FRAME_REQUEST = 1, FRAME_DATA = 2, FRAME_REPLY = 3 } frame_kind;

/* In front of each frame: kind, whose library it is for (0: for none), two zeros, size as 32 bits, least first. */
typedef struct {
  uint8_t kind, worker;
  uint32_t size;
} frame_head;
#define HEAD_SIZE 8

typedef enum { WIRE_OK = 0, WIRE_END = -1, WIRE_LATE = -2, WIRE_BAD = -3 } wire_status;

/* All bytes or none: the time is until the first byte, after that STALLED_MS between any two. -1: no limit. */
wire_status wire_read(int fd, void *bytes, size_t size, int first_ms);
wire_status wire_write(int fd, const void *bytes, size_t size);
/* Read a head that is one of the protocol's. */
wire_status frame_read_head(int fd, frame_head *head, int first_ms);
wire_status frame_write(int fd, frame_kind kind, uint8_t worker, const void *bytes, size_t size);

/* A text that grows up to MAX_DATA; beyond that, or without memory, it is cut and `cut` says so. */
typedef struct {
  char *at;
  size_t used, room;
  int cut;
} text;
void text_add(text *made, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Add a string of JSON with its quotes; bytes that are no printable ASCII become a question mark. */
void text_add_string(text *made, const char *string);
void text_free(text *made);

/* A request is `name key=value key=value`, one space between; a value is of letters, digits and . _ - */
typedef struct {
  char bytes[MAX_REQUEST + 1];
  const char *name;
  struct {
    const char *key, *value;
  } fields[16];
  unsigned count;
} request;
/* Take a request apart; 0 where it is one. The size is at most MAX_REQUEST. */
int request_parse(request *made, const void *bytes, size_t size);
/* The value of a key, NULL where it is not said. */
const char *request_value(const request *asked, const char *key);
/* A number of a request from low to high; 0 and *found, or -1. Where it is not said: `otherwise`. */
int request_number(const request *asked, const char *key, uint64_t low, uint64_t high, uint64_t otherwise, uint64_t *found);

#endif
