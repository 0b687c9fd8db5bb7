/* The protocol of host and agent: frames of bounded size, read and written within bounded times. */
#ifndef TVMFLOW_AGENT_WIRE_H
#define TVMFLOW_AGENT_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* Incremented with every change of the protocol; both sides send theirs first. */
#define AGENT_VERSION 2
#define AGENT_MAGIC "tvmflow agent\n\0" /* 16 bytes with the closing zero */
#define MAGIC_SIZE 16
#define NONCE_SIZE 32

#define MAX_REQUEST 1024u        /* bytes of a request's text */
#define MAX_DATA (1u << 20)      /* bytes of a frame of data, and of a reply's text */
#define MAX_FILE (8ull << 30)    /* bytes of an upload */
#define STALLED_MS 30000         /* for a message, and beside it a ms for each SLOWEST bytes */
#define SLOWEST 16u              /* bytes per ms: no more than a slow line needs */
#define HELLO_MS 10000           /* time limit of the authentication as a whole */

/* FRAME_BUSY, without content: the agent is there, and what was asked for goes on. */
typedef enum { FRAME_REQUEST = 1, FRAME_DATA = 2, FRAME_REPLY = 3, FRAME_BUSY = 4 } frame_kind;

/* The head of each frame: kind, number of the library (0: none), two zeros, size in 32 bits, little-endian. */
typedef struct {
  uint8_t kind, worker;
  uint32_t size;
} frame_head;
#define HEAD_SIZE 8

typedef enum { WIRE_OK = 0, WIRE_END = -1, WIRE_LATE = -2, WIRE_BAD = -3 } wire_status;

uint64_t now_ms(void);
/* Read or write all bytes: first_ms is the limit of the first byte (-1: none), and from it on, or from the beginning of a
 * write, all have to pass within STALLED_MS and size / SLOWEST: a byte now and then does not hold a connection. */
wire_status wire_read(int fd, void *bytes, size_t size, int first_ms);
/* Read all bytes until a time of now_ms(). */
wire_status wire_read_until(int fd, void *bytes, size_t size, uint64_t end_ms);
wire_status wire_write(int fd, const void *bytes, size_t size);
/* Read a valid head. */
wire_status frame_read_head(int fd, frame_head *head, int first_ms);
wire_status frame_write(int fd, frame_kind kind, uint8_t worker, const void *bytes, size_t size);

/* A text that grows up to MAX_DATA; beyond that, or without memory, it is truncated and `cut` is set. */
typedef struct {
  char *at;
  size_t used, room;
  int cut;
} text;
void text_add(text *made, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Add a quoted JSON string; bytes other than printable ASCII become question marks. */
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
/* Parse a request of at most MAX_REQUEST bytes; return 0 if it is valid. */
int request_parse(request *made, const void *bytes, size_t size);
/* Return the value of a key, NULL if it is missing. */
const char *request_value(const request *asked, const char *key);
/* Read a number of a request from low to high into *found; return 0, or -1 if it is invalid. Missing: `otherwise`. */
int request_number(const request *asked, const char *key, uint64_t low, uint64_t high, uint64_t otherwise, uint64_t *found);

#endif
