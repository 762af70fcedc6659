/* A C99 program as an engine's: linked with libems.so alone, against real daemons.
 *
 *   c_program kill CONTROLLER PID    submits batches, kills PID while they are under way
 *   c_program stop CONTROLLER PID    the same with SIGSTOP: it stays connected and says nothing
 *
 * Exactly one completion must come for each batch that was accepted, within its deadline and
 * SLACK_MS; bytes that count as read must be right. Prints a line with figures; exit code 0 if all
 * holds. c_program_test.cc runs it. */
#include <ems.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  BATCHES = 48,
  ITEMS = 8,
  VALUE_BYTES = 256 * 1024,
  DEADLINE_MS = 1000,
  SLACK_MS = 100,
  DEPTH = 2 * BATCHES
};

struct batch {
  int64_t submitted_us;
  int completions;
  char keys[ITEMS][32];
  ems_status codes[ITEMS];
  uint64_t lengths[ITEMS];
};

static struct batch reads[BATCHES], writes[BATCHES];
static char* rooms; /* of all gets */
static char* value; /* of all puts */

static int64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, ems_last_error());
  return 1;
}

static char byte_of(size_t batch, size_t item) { return (char)('a' + (batch * 7 + item) % 26); }
static char* room_of(size_t batch, size_t item) {
  return rooms + (batch * ITEMS + item) * VALUE_BYTES;
}

static void describe(struct batch* batch, size_t b, char kind, ems_item* items, ems_iov* pieces) {
  size_t i;
  for (i = 0; i < ITEMS; ++i) {
    snprintf(batch->keys[i], sizeof(batch->keys[i]), "%c %lu %lu", kind, (unsigned long)b,
             (unsigned long)i);
    pieces[i].base = kind == 'g' ? room_of(b, i) : value;
    pieces[i].size = VALUE_BYTES;
    items[i].key = batch->keys[i];
    items[i].key_size = strlen(batch->keys[i]);
    items[i].value.iov = &pieces[i];
    items[i].value.count = 1;
  }
}

/* What the gets will find. */
static int fill(ems_client* client) {
  ems_item items[ITEMS];
  ems_iov pieces[ITEMS];
  size_t b, i;
  for (b = 0; b < BATCHES; ++b) {
    describe(&reads[b], b, 'g', items, pieces);
    for (i = 0; i < ITEMS; ++i) memset(room_of(b, i), byte_of(b, i), VALUE_BYTES);
    if (ems_put_batch(client, items, ITEMS, NULL, reads[b].codes) != EMS_OK) return fail("fill");
  }
  memset(rooms, '?', (size_t)BATCHES * ITEMS * VALUE_BYTES);
  return 0;
}

static int submit_all(ems_cq* queue) {
  ems_item items[ITEMS];
  ems_iov pieces[ITEMS];
  ems_call_options options;
  size_t b;
  ems_call_options_init(&options, sizeof(options));
  options.timeout_ms = DEADLINE_MS;
  for (b = 0; b < BATCHES; ++b) {
    const int64_t before = now_us();
    describe(&reads[b], b, 'g', items, pieces);
    reads[b].submitted_us = now_us();
    if (ems_get_submit(queue, b, items, ITEMS, &options, reads[b].codes, reads[b].lengths)) {
      return fail("submit");
    }
    describe(&writes[b], b, 'p', items, pieces);
    writes[b].submitted_us = now_us();
    if (ems_put_submit(queue, BATCHES + b, items, ITEMS, &options, writes[b].codes)) {
      return fail("submit");
    }
    if (now_us() - before > 100000) return fail("submitting took above 100 ms");
  }
  return 0;
}

static int check_gets(size_t b, int* hits, int* failed) {
  size_t i, at;
  for (i = 0; i < ITEMS; ++i) {
    if (reads[b].codes[i] != EMS_OK) {
      if (reads[b].lengths[i] != 0) return fail("a length of a value that did not arrive");
      *failed += reads[b].codes[i] != EMS_NOT_FOUND;
      continue;
    }
    ++*hits;
    if (reads[b].lengths[i] != VALUE_BYTES) return fail("a wrong length");
    for (at = 0; at < VALUE_BYTES; ++at) {
      if (room_of(b, i)[at] != byte_of(b, i)) return fail("a wrong byte");
    }
  }
  return 0;
}

static int drain(ems_cq* queue, long pid, int signal_number) {
  ems_completion done[16];
  size_t left = DEPTH, before_signal = 0, count, i;
  int signalled = 0, hits = 0, failed = 0;
  int64_t latest_us = 0;
  while (left > 0) {
    struct pollfd ready;
    ready.fd = ems_cq_fd(queue);
    ready.events = POLLIN;
    if (poll(&ready, 1, 2 * (DEADLINE_MS + SLACK_MS)) != 1) return fail("a completion is missing");
    if (ems_cq_poll(queue, done, 16, &count) != EMS_OK) return fail("poll");
    for (i = 0; i < count; ++i) {
      struct batch* batch = done[i].tag < BATCHES ? &reads[done[i].tag] : &writes[done[i].tag - BATCHES];
      const int64_t took_us = now_us() - batch->submitted_us;
      if (done[i].tag >= DEPTH || ++batch->completions != 1) return fail("a tag twice");
      if (took_us > latest_us) latest_us = took_us;
      if (done[i].tag < BATCHES) {
        if (check_gets(done[i].tag, &hits, &failed) != 0) return 1;
      } else {
        size_t item;
        for (item = 0; item < ITEMS; ++item) failed += batch->codes[item] != EMS_OK;
      }
    }
    left -= count;
    if (!signalled && left < DEPTH) { /* the first are done, the others under way */
      if (kill((pid_t)pid, signal_number) != 0) return fail("kill");
      signalled = 1;
      before_signal = DEPTH - left;
    }
  }
  printf("%d batches, %d of them before the signal; %d values read, %d keys failed; latest "
         "completion after %d ms, deadline %d ms\n",
         DEPTH, (int)before_signal, hits, failed, (int)(latest_us / 1000), DEADLINE_MS);
  if (before_signal > DEPTH / 2) return fail("the signal came too late to prove anything");
  if (failed == 0) return fail("nothing failed: the server was not needed");
  if (latest_us > (int64_t)(DEADLINE_MS + SLACK_MS) * 1000) return fail("a completion came late");
  return 0;
}

int main(int argc, char** argv) {
  ems_client_options options;
  ems_client* client;
  ems_cq* queue;
  int failed;
  if (argc != 4 || (strcmp(argv[1], "kill") != 0 && strcmp(argv[1], "stop") != 0)) {
    fprintf(stderr, "usage: c_program kill|stop CONTROLLER PID\n");
    return 2;
  }
  rooms = malloc((size_t)BATCHES * ITEMS * VALUE_BYTES);
  value = malloc(VALUE_BYTES);
  if (rooms == NULL || value == NULL) return fail("malloc");
  memset(value, 'v', VALUE_BYTES);
  ems_client_options_init(&options, sizeof(options));
  options.controller = argv[2];
  if (ems_connect(&options, &client) != EMS_OK) return fail("connect");
  if (ems_cq_create(client, DEPTH, &queue) != EMS_OK) return fail("queue");
  failed = fill(client) || submit_all(queue) ||
           drain(queue, atol(argv[3]), strcmp(argv[1], "kill") == 0 ? SIGKILL : SIGSTOP);
  ems_cq_destroy(queue);
  ems_client_destroy(client);
  free(rooms);
  free(value);
  return failed;
}
