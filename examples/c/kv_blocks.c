/* What an engine does with a prompt: look up, load what is there, compute the rest, save it.
 *
 *   kv_blocks [host:port of the controller]
 *
 * docs/C_API.md quotes the parts between the marks; tests/integrations/c runs all of it. */
#include <ems.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_TOKENS = 128, BLOCK_BYTES = 65536, BLOCKS = 8, TOKENS = BLOCKS * BLOCK_TOKENS + 7 };

static char kv[BLOCKS][BLOCK_BYTES]; /* stands for the engine's KV memory */

static int complain(const char* what) {
  fprintf(stderr, "%s: %s\n", what, ems_last_error());
  return 1;
}

/* Stands for prefill: the bytes of a block follow from its tokens. */
static void compute(const int32_t* tokens, size_t block) {
  memset(kv[block], (int)(tokens[block * BLOCK_TOKENS] % 251), BLOCK_BYTES);
}

/* [connect] */
static ems_client* connect_to(const char* controller) {
  ems_client_options options;
  ems_client* client;
  ems_client_options_init(&options, sizeof(options));
  options.controller = controller;
  ems_connect(&options, &client); /* NULL when it failed: go on without a cache */
  return client;
}

static ems_context* open_context(ems_client* client) {
  ems_context_options options;
  ems_context* context;
  ems_context_options_init(&options, sizeof(options));
  options.model = "fingerprint of the weights";
  options.dtype = "bf16";
  options.kv_layout = "NHD/2x8x128";
  options.block_tokens = BLOCK_TOKENS;
  ems_context_create(client, &options, &context);
  return context;
}
/* [connect] */

/* [prompt] */
/* Loads the leading blocks that the pool has and returns how many. */
static size_t load_prefix(ems_context* context, const char* keys, const ems_pieces* blocks) {
  size_t there = 0, loaded = 0;
  ems_context_lookup(context, keys, BLOCKS, NULL, NULL, &there);
  if (there == 0) return 0; /* a miss, or an error: compute */
  ems_context_load(context, keys, there, blocks, NULL, NULL, &loaded);
  return loaded; /* blocks may have gone in between: this is what counts */
}

/* Saves blocks in the background. Their memory stays as it is until the completion has come. */
static int save_rest(ems_context* context, ems_cq* queue, const char* keys,
                     const ems_pieces* blocks, size_t from) {
  ems_completion done = {0};
  size_t count = 0;
  const char* first = keys + from * ems_context_key_size(context);
  if (ems_context_save_submit(context, queue, 1, first, BLOCKS - from, blocks + from, NULL, NULL)) {
    return complain("save"); /* full: nothing was begun, drop it */
  }
  while (count == 0) { /* an engine has this descriptor in its event loop */
    struct pollfd ready = {.fd = ems_cq_fd(queue), .events = POLLIN};
    if (poll(&ready, 1, -1) < 0 && errno != EINTR) return 1;
    ems_cq_poll(queue, &done, 1, &count);
  }
  return done.code == EMS_OK ? 0 : complain("save");
}
/* [prompt] */

static int serve(ems_context* context, ems_cq* queue, const int32_t* tokens) {
  char keys[BLOCKS * 32];
  ems_iov pieces[BLOCKS];
  ems_pieces blocks[BLOCKS];
  size_t count, have, i;
  if (ems_context_hash_tokens(context, tokens, TOKENS, NULL, keys, BLOCKS, &count) != EMS_OK) {
    return complain("hash");
  }
  for (i = 0; i < BLOCKS; ++i) { /* one piece a block; an engine has some for each layer */
    pieces[i].base = kv[i];
    pieces[i].size = BLOCK_BYTES;
    blocks[i].iov = &pieces[i];
    blocks[i].count = 1;
  }
  have = load_prefix(context, keys, blocks);
  for (i = have; i < BLOCKS; ++i) compute(tokens, i);
  printf("%u blocks loaded, %u computed\n", (unsigned)have, (unsigned)(BLOCKS - have));
  return have < BLOCKS ? save_rest(context, queue, keys, blocks, have) : 0;
}

int main(int argc, char** argv) {
  int32_t tokens[TOKENS];
  int failed = 1, i;
  ems_context* context = NULL;
  ems_cq* queue = NULL;
  ems_client* client = connect_to(argc > 1 ? argv[1] : "127.0.0.1:7400");
  if (client == NULL) return complain("connect");
  for (i = 0; i < TOKENS; ++i) tokens[i] = 7 * i + 1;
  context = open_context(client);
  if (context != NULL && ems_cq_create(client, 16, &queue) == EMS_OK) {
    failed = serve(context, queue, tokens); /* computes all */
    memset(kv, 0, sizeof(kv));
    failed = serve(context, queue, tokens) || failed; /* loads all */
    for (i = 0; i < BLOCKS; ++i) {
      if (kv[i][BLOCK_BYTES - 1] != (char)(tokens[i * BLOCK_TOKENS] % 251)) failed = 1;
    }
  } else {
    complain("context");
  }
  ems_cq_destroy(queue);
  ems_context_destroy(context);
  ems_client_destroy(client);
  return failed;
}
