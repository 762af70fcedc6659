/* Paged KV through ems.h as an engine in C sees it, against real daemons:
 *
 *   kv_program groups|layers|ranks|policy|bad CONTROLLER
 *
 * The engine has six layers of two kinds: full attention (group 0, pages of 16 tokens) and a
 * sliding window (group 1, pages of 8). Exit code 0 if all holds; else says what does not.
 * kv_program_test.cc runs it. */
#include <ems.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LAYERS = 6,
  TENSORS = 2 * LAYERS, /* K, V */
  HEADS = 2,
  HEAD_SIZE = 4,
  TOKEN_BYTES = HEADS * HEAD_SIZE * 2, /* of one tensor */
  SLOTS = 256,
  BLOCKS = 4,
  BLOCK_TOKENS = 32,
  TENSOR_BYTES = SLOTS * TOKEN_BYTES,
  WAIT_MS = 20000
};

static const uint32_t kGroups[LAYERS] = {0, 1, 0, 1, 1, 0};
/* The window: block 0 has left it, of block 1 the last 8 tokens are in it. */
static const uint32_t kWindow[BLOCKS] = {0, 8, BLOCK_TOKENS, BLOCK_TOKENS};
enum { WINDOW_SLOTS = 8 + 2 * BLOCK_TOKENS, FULL_SLOTS = BLOCKS * BLOCK_TOKENS };

struct engine {
  unsigned char memory[TENSORS][TENSOR_BYTES];
  ems_kv_tensor tensors[TENSORS];
  ems_context* context;
  ems_kv* kv;
  char keys[BLOCKS * 32];
  int64_t full[FULL_SLOTS], window[WINDOW_SLOTS];
  ems_kv_slots groups[2];
  ems_kv_blocks blocks;
};

#define CHECK(holds)                                                                     \
  do {                                                                                   \
    if (!(holds)) {                                                                      \
      printf("line %d: %s does not hold; \"%s\"\n", __LINE__, #holds, ems_last_error()); \
      return 1;                                                                          \
    }                                                                                    \
  } while (0)
/* The call returns EMS_INVALID_ARGUMENT, and its text has this. */
#define CHECK_REFUSED(call, text)          \
  do {                                     \
    CHECK((call) == EMS_INVALID_ARGUMENT); \
    CHECK(strstr(ems_last_error(), text)); \
  } while (0)

static int check_codes(const ems_status* codes, ems_status a, ems_status b, ems_status c,
                       ems_status d) {
  return codes[0] == a && codes[1] == b && codes[2] == c && codes[3] == d;
}

/* Different slots in a scattered order: 7 is prime to the number of slots. */
static void choose_slots(struct engine* engine, int64_t from) {
  int64_t i;
  for (i = 0; i < FULL_SLOTS; ++i) engine->full[i] = (from + i * 7) % SLOTS;
  for (i = 0; i < WINDOW_SLOTS; ++i) engine->window[i] = (from + 3 + i * 5) % SLOTS;
}

static void fill(struct engine* engine, unsigned seed) {
  size_t i, at;
  for (i = 0; i < TENSORS; ++i) {
    for (at = 0; at < TENSOR_BYTES; ++at) {
      seed = seed * 1103515245u + 12345u;
      engine->memory[i][at] = (unsigned char)(seed >> 16);
    }
  }
}

static void describe(struct engine* engine) {
  size_t i;
  memset(engine, 0, sizeof(*engine));
  for (i = 0; i < TENSORS; ++i) {
    ems_kv_tensor* tensor = &engine->tensors[i];
    const uint32_t layer = (uint32_t)i / 2;
    tensor->data = engine->memory[i];
    tensor->bytes = TENSOR_BYTES;
    tensor->layer = layer;
    tensor->dtype = EMS_KV_BFLOAT16;
    tensor->order = EMS_KV_TOKENS_FIRST;
    tensor->block_tokens = kGroups[layer] == 0 ? 16 : 8;
    tensor->blocks = SLOTS / tensor->block_tokens;
    tensor->heads = HEADS;
    tensor->head_size = HEAD_SIZE;
  }
  engine->groups[0].slots = engine->full;
  engine->groups[0].slot_count = FULL_SLOTS;
  engine->groups[1].slots = engine->window;
  engine->groups[1].slot_count = WINDOW_SLOTS;
  engine->groups[1].tokens = kWindow;
  engine->blocks.keys = engine->keys;
  engine->blocks.count = BLOCKS;
  engine->blocks.groups = engine->groups;
  engine->blocks.group_count = 2;
}

static void default_options(ems_kv_options* options) {
  ems_kv_options_init(options, sizeof(*options));
  options->layer_groups = kGroups;
  options->layer_count = LAYERS;
}

/* An engine that is connected, has its slots, and keys of a prompt under `model`. */
static int open_engine(struct engine* engine, ems_client* client, const char* model,
                       const ems_kv_options* options, int64_t from) {
  ems_context_options made_with;
  char layout[512];
  int32_t tokens[BLOCKS * BLOCK_TOKENS];
  size_t length, count, i;
  describe(engine);
  choose_slots(engine, from);
  CHECK(ems_kv_fingerprint_with(engine->tensors, TENSORS, options, layout, sizeof(layout),
                                &length) == EMS_OK);
  CHECK(strlen(layout) == length);
  ems_context_options_init(&made_with, sizeof(made_with));
  made_with.model = model;
  made_with.dtype = "bf16";
  made_with.kv_layout = layout;
  made_with.block_tokens = BLOCK_TOKENS;
  made_with.timeout_ms = WAIT_MS;
  CHECK(ems_context_create(client, &made_with, &engine->context) == EMS_OK);
  CHECK(ems_kv_register_with(engine->context, engine->tensors, TENSORS, options, &engine->kv) ==
        EMS_OK);
  for (i = 0; i < BLOCKS * BLOCK_TOKENS; ++i) tokens[i] = (int32_t)(3 * i);
  CHECK(ems_context_hash_tokens(engine->context, tokens, BLOCKS * BLOCK_TOKENS, NULL, engine->keys,
                                BLOCKS, &count) == EMS_OK);
  CHECK(count == BLOCKS);
  return 0;
}

static void close_engine(struct engine* engine) {
  ems_kv_unregister(engine->kv);
  ems_context_destroy(engine->context);
}

static const unsigned char* at_slot(const struct engine* engine, size_t tensor, int64_t slot) {
  return engine->memory[tensor] + slot * TOKEN_BYTES;
}

/* `to` has in its slots what `from` has in its own, in this layer. */
static int same_layer(const struct engine* from, const struct engine* to, size_t layer) {
  const int full = kGroups[layer] == 0;
  const size_t slots = full ? FULL_SLOTS : WINDOW_SLOTS;
  size_t tensor, i;
  for (tensor = 2 * layer; tensor < 2 * layer + 2; ++tensor) {
    for (i = 0; i < slots; ++i) {
      const int64_t a = full ? from->full[i] : from->window[i];
      const int64_t b = full ? to->full[i] : to->window[i];
      if (memcmp(at_slot(from, tensor, a), at_slot(to, tensor, b), TOKEN_BYTES) != 0) return 0;
    }
  }
  return 1;
}

/* Slots that nobody named are still zero. */
static int others_untouched(const struct engine* engine) {
  static const unsigned char zero[TOKEN_BYTES];
  size_t tensor, i;
  int64_t slot;
  for (tensor = 0; tensor < TENSORS; ++tensor) {
    const int full = kGroups[tensor / 2] == 0;
    for (slot = 0; slot < SLOTS; ++slot) {
      int named = 0;
      for (i = 0; i < (full ? FULL_SLOTS : WINDOW_SLOTS); ++i) {
        named |= (full ? engine->full[i] : engine->window[i]) == slot;
      }
      if (!named && memcmp(at_slot(engine, tensor, slot), zero, TOKEN_BYTES) != 0) return 0;
    }
  }
  return 1;
}

static int next_completion(ems_cq* queue, ems_completion* done) {
  size_t count = 0;
  while (count == 0) {
    struct pollfd ready;
    ready.fd = ems_cq_fd(queue);
    ready.events = POLLIN;
    CHECK(poll(&ready, 1, WAIT_MS) == 1);
    CHECK(ems_cq_poll(queue, done, 1, &count) == EMS_OK);
  }
  return 0;
}

static struct engine writer, reader;

static int test_groups(ems_client* client) {
  ems_kv_options options;
  ems_kv_saved saved;
  ems_status codes[BLOCKS];
  ems_cq* queue;
  ems_completion done;
  size_t leading, layer;
  default_options(&options);
  CHECK(open_engine(&writer, client, "groups", &options, 5) == 0);
  CHECK(open_engine(&reader, client, "groups", &options, 100) == 0);
  fill(&writer, 1);
  CHECK(memcmp(writer.keys, reader.keys, sizeof(writer.keys)) == 0);
  CHECK(ems_kv_save_blocks(writer.kv, &writer.blocks, EMS_PHASE_PREFILL, NULL, codes, &saved) ==
        EMS_OK);
  CHECK(saved.stored == BLOCKS && saved.existing == 0 && saved.skipped == 0);
  CHECK(ems_kv_save_blocks(writer.kv, &writer.blocks, EMS_PHASE_PREFILL, NULL, codes, &saved) ==
        EMS_OK);
  CHECK(saved.stored == 0 && saved.existing == BLOCKS && saved.skipped == 0);
  CHECK(ems_kv_load_blocks(reader.kv, &reader.blocks, NULL, codes, &leading) == EMS_OK);
  CHECK(leading == BLOCKS && check_codes(codes, EMS_OK, EMS_OK, EMS_OK, EMS_OK));
  for (layer = 0; layer < LAYERS; ++layer) CHECK(same_layer(&writer, &reader, layer));
  CHECK(others_untouched(&reader));

  /* The same later, from arguments that do not stay. */
  memset(reader.memory, 0, sizeof(reader.memory));
  CHECK(ems_cq_create(client, 4, &queue) == EMS_OK);
  {
    ems_kv_slots groups[2];
    ems_kv_blocks blocks = reader.blocks;
    memcpy(groups, reader.groups, sizeof(groups));
    blocks.groups = groups;
    CHECK(ems_kv_load_blocks_submit(reader.kv, queue, 7, &blocks, NULL, codes) == EMS_OK);
    memset(groups, 0xff, sizeof(groups));
    memset(&blocks, 0xff, sizeof(blocks));
  }
  CHECK(next_completion(queue, &done) == 0);
  CHECK(done.tag == 7 && done.code == EMS_OK && done.value == BLOCKS);
  for (layer = 0; layer < LAYERS; ++layer) CHECK(same_layer(&writer, &reader, layer));
  CHECK(ems_kv_save_blocks_submit(reader.kv, queue, 8, &reader.blocks, EMS_PHASE_FINAL, NULL,
                                  codes) == EMS_OK);
  CHECK(next_completion(queue, &done) == 0);
  CHECK(done.tag == 8 && done.code == EMS_OK && done.value == BLOCKS);

  /* A queue that is destroyed under way: afterwards the memory is the engine's alone. */
  CHECK(ems_kv_load_blocks_submit(reader.kv, queue, 9, &reader.blocks, NULL, codes) == EMS_OK);
  ems_cq_destroy(queue);
  CHECK(codes[0] == EMS_OK || codes[0] == EMS_CANCELLED);
  memset(reader.memory, 0, sizeof(reader.memory));

  /* Another number of tokens in the window is a block of another length: a miss. */
  {
    static const uint32_t other[BLOCKS] = {0, 8, BLOCK_TOKENS, BLOCK_TOKENS - 1};
    reader.groups[1].tokens = other;
    reader.groups[1].slot_count = WINDOW_SLOTS - 1;
    CHECK(ems_kv_load_blocks(reader.kv, &reader.blocks, NULL, codes, &leading) == EMS_NOT_FOUND);
    CHECK(leading == 3 && check_codes(codes, EMS_OK, EMS_OK, EMS_OK, EMS_NOT_FOUND));
  }
  close_engine(&writer);
  close_engine(&reader);
  return 0;
}

static int test_layers(ems_client* client) {
  ems_kv_options options;
  ems_layer_load* load;
  ems_status codes[BLOCKS];
  uint8_t missing[BLOCKS];
  size_t leading;
  uint32_t layer;
  default_options(&options);
  options.layer_read_bytes = 1; /* each layer is a read of its own */
  CHECK(open_engine(&writer, client, "layers", &options, 31) == 0);
  CHECK(open_engine(&reader, client, "layers", &options, 200) == 0);
  fill(&writer, 2);
  CHECK(ems_kv_save_blocks(writer.kv, &writer.blocks, EMS_PHASE_PREFILL, NULL, NULL, NULL) ==
        EMS_OK);
  CHECK(ems_kv_load_layers(reader.kv, &reader.blocks, NULL, &load) == EMS_OK);
  for (layer = 0; layer < LAYERS; ++layer) {
    memset(missing, 9, sizeof(missing));
    CHECK(ems_layer_load_wait(load, layer, WAIT_MS, &leading, missing) == EMS_OK);
    CHECK(leading == BLOCKS && missing[0] + missing[1] + missing[2] + missing[3] == 0);
    CHECK(ems_layer_load_ready(load) > layer);
    CHECK(same_layer(&writer, &reader, layer));
  }
  CHECK(ems_layer_load_wait(load, LAYERS, 0, &leading, NULL) == EMS_OUT_OF_RANGE);
  CHECK(ems_layer_load_result(load, codes, &leading) == EMS_OK);
  CHECK(leading == BLOCKS && check_codes(codes, EMS_OK, EMS_OK, EMS_OK, EMS_OK));
  CHECK(ems_layer_load_cancel(load) == EMS_OK); /* it is over: nothing changes */
  CHECK(ems_layer_load_result(load, codes, &leading) == EMS_OK);
  ems_layer_load_destroy(load);
  CHECK(others_untouched(&reader));

  /* One block is gone. */
  CHECK(ems_remove(client, writer.keys + 2 * 32, 32, NULL) == EMS_OK);
  CHECK(ems_kv_load_layers(reader.kv, &reader.blocks, NULL, &load) == EMS_OK);
  CHECK(ems_layer_load_wait(load, LAYERS - 1, WAIT_MS, &leading, missing) == EMS_NOT_FOUND);
  CHECK(leading == 2 && !missing[0] && !missing[1] && missing[2] && !missing[3]);
  CHECK(ems_layer_load_result(load, codes, &leading) == EMS_NOT_FOUND);
  CHECK(leading == 2 && check_codes(codes, EMS_OK, EMS_OK, EMS_NOT_FOUND, EMS_OK));
  ems_layer_load_destroy(load);
  close_engine(&writer);
  close_engine(&reader);
  return 0;
}

static int test_ranks(ems_client* client) {
  ems_kv_options options;
  ems_kv_saved saved;
  ems_status codes[BLOCKS];
  size_t leading, layer;
  uint32_t rank;
  default_options(&options);
  options.shared_by_tp = 1;
  options.tp_size = 3;
  for (rank = 0; rank < 3; ++rank) { /* ranks 0, 1, 2 have blocks 0 and 3, 1, 2 */
    options.tp_rank = rank;
    CHECK(open_engine(&writer, client, "ranks", &options, 9) == 0);
    fill(&writer, 3); /* all the same */
    CHECK(ems_kv_save_blocks(writer.kv, &writer.blocks, EMS_PHASE_PREFILL, NULL, codes, &saved) ==
          EMS_OK);
    CHECK(saved.stored == (rank == 0 ? 2u : 1u) && saved.existing == 0);
    CHECK(saved.skipped == BLOCKS - saved.stored);
    CHECK(check_codes(codes, EMS_OK, EMS_OK, EMS_OK, EMS_OK));
    if (rank < 2) close_engine(&writer);
  }
  CHECK(open_engine(&reader, client, "ranks", &options, 77) == 0);
  CHECK(ems_kv_load_blocks(reader.kv, &reader.blocks, NULL, codes, &leading) == EMS_OK);
  for (layer = 0; layer < LAYERS; ++layer) CHECK(same_layer(&writer, &reader, layer));
  close_engine(&writer);
  close_engine(&reader);
  return 0;
}

static int test_policy(ems_client* client) {
  static const struct {
    uint32_t policy;
    const char* model;
    int saves[3]; /* prefill, decode, final */
  } kPolicies[] = {{EMS_SAVE_PREFILL_ONLY, "policy prefill", {1, 0, 0}},
                   {EMS_SAVE_ALL, "policy all", {1, 1, 1}},
                   {EMS_SAVE_FINAL_RESPONSE, "policy final", {1, 0, 1}}};
  size_t i, leading;
  uint32_t phase;
  for (i = 0; i < 3; ++i) {
    ems_kv_options options;
    default_options(&options);
    CHECK(options.save_policy == EMS_SAVE_PREFILL_ONLY);
    options.save_policy = kPolicies[i].policy;
    CHECK(open_engine(&writer, client, kPolicies[i].model, &options, 0) == 0);
    fill(&writer, 4);
    for (phase = EMS_PHASE_PREFILL; phase <= EMS_PHASE_FINAL; ++phase) {
      const int saves = kPolicies[i].saves[phase];
      ems_kv_saved saved;
      ems_status codes[BLOCKS];
      size_t block;
      CHECK(ems_kv_save_blocks(writer.kv, &writer.blocks, phase, NULL, codes, &saved) == EMS_OK);
      CHECK(saved.stored == (saves ? BLOCKS : 0u) && saved.skipped == (saves ? 0u : BLOCKS));
      CHECK(check_codes(codes, EMS_OK, EMS_OK, EMS_OK, EMS_OK));
      CHECK(ems_context_lookup(writer.context, writer.keys, BLOCKS, NULL, NULL, &leading) ==
            (saves ? EMS_OK : EMS_NOT_FOUND));
      CHECK(leading == (saves ? BLOCKS : 0u));
      for (block = 0; saves && block < BLOCKS; ++block) {
        CHECK(ems_remove(client, writer.keys + block * 32, 32, NULL) == EMS_OK);
      }
    }
    close_engine(&writer);
  }
  return 0;
}

static int test_bad(ems_client* client) {
  static const uint32_t kGap[LAYERS] = {0, 2, 0, 2, 2, 0}, kMixed[LAYERS] = {0, 0, 1, 1, 1, 0};
  static const uint32_t kNone[BLOCKS] = {0, 0, 0, 0};
  struct {
    ems_kv_options known;
    char newer[16];
  } longer;
  ems_kv_options options, bad;
  ems_context_options of_rank;
  ems_context* context;
  ems_kv* kv = NULL;
  ems_kv_blocks blocks;
  ems_kv_slots groups[2];
  ems_layer_load* load = NULL;
  ems_status codes[BLOCKS];
  ems_kv_saved saved;
  char layout[512];
  size_t length, leading = 9;

  CHECK_REFUSED(ems_kv_options_init(NULL, sizeof(options)), "options is NULL");
  CHECK_REFUSED(ems_kv_options_init(&options, 4), "ems_kv_options of 4 bytes");
  CHECK_REFUSED(ems_kv_options_init(&options, SIZE_MAX), "ems_kv_options of");
  /* A newer program's struct is taken as long as it asks for nothing new. */
  CHECK(ems_kv_options_init(&longer.known, sizeof(longer)) == EMS_OK);
  longer.known.layer_groups = kGroups;
  longer.known.layer_count = LAYERS;
  CHECK(open_engine(&writer, client, "bad", &longer.known, 0) == 0);
  longer.newer[3] = 1;
  CHECK_REFUSED(ems_kv_register_with(writer.context, writer.tensors, TENSORS, &longer.known, &kv),
                "does not know");
  CHECK(kv == NULL);

  default_options(&options);
#define REFUSED_OPTION(field, value, text)                                                         \
  do {                                                                                             \
    bad = options;                                                                                 \
    bad.field = value;                                                                             \
    CHECK_REFUSED(ems_kv_register_with(writer.context, writer.tensors, TENSORS, &bad, &kv), text); \
    CHECK_REFUSED(                                                                                 \
        ems_kv_fingerprint_with(writer.tensors, TENSORS, &bad, layout, sizeof(layout), &length),   \
        text);                                                                                     \
    CHECK(kv == NULL);                                                                             \
  } while (0)
  REFUSED_OPTION(size, 8, "ems_kv_options of 8 bytes");
  REFUSED_OPTION(layer_groups, NULL, "layer_count without layer_groups");
  REFUSED_OPTION(layer_count, LAYERS - 1, "layer_count is 5");
  REFUSED_OPTION(layer_count, SIZE_MAX, "layer_count is");
  REFUSED_OPTION(layer_groups, kGap, "group");
  REFUSED_OPTION(layer_groups, kMixed, "its group 0");
  REFUSED_OPTION(save_policy, 3, "save_policy is 3");
  REFUSED_OPTION(shared_by_tp, 2, "shared_by_tp is 2");
  REFUSED_OPTION(tp_rank, 1, "tp_rank is 1");
  REFUSED_OPTION(tp_size, 0, "tp_size is 0");
  REFUSED_OPTION(layer_read_bytes, 0, "layer_read_bytes is 0");

  /* Ranks that share need a context whose keys are the same on all of them. */
  CHECK(ems_kv_fingerprint_with(writer.tensors, TENSORS, &options, layout, sizeof(layout),
                                &length) == EMS_OK);
  ems_context_options_init(&of_rank, sizeof(of_rank));
  of_rank.model = "bad";
  of_rank.dtype = "bf16";
  of_rank.kv_layout = layout;
  of_rank.tp_size = 2;
  CHECK(ems_context_create(client, &of_rank, &context) == EMS_OK);
  bad = options;
  bad.shared_by_tp = 1;
  bad.tp_size = 2;
  CHECK_REFUSED(ems_kv_register_with(context, writer.tensors, TENSORS, &bad, &kv), "tp_size 2");
  ems_context_destroy(context);

#define REFUSED_BLOCKS(field, value, text)                                                       \
  do {                                                                                           \
    memcpy(groups, writer.groups, sizeof(groups));                                               \
    blocks = writer.blocks;                                                                      \
    blocks.groups = groups;                                                                      \
    field = value;                                                                               \
    CHECK_REFUSED(ems_kv_load_blocks(writer.kv, &blocks, NULL, codes, &leading), text);          \
    CHECK(leading == 0);                                                                         \
    CHECK_REFUSED(ems_kv_save_blocks(writer.kv, &blocks, EMS_PHASE_PREFILL, NULL, NULL, &saved), \
                  text);                                                                         \
    CHECK_REFUSED(ems_kv_load_layers(writer.kv, &blocks, NULL, &load), text);                    \
    CHECK(load == NULL);                                                                         \
  } while (0)
  REFUSED_BLOCKS(blocks.keys, NULL, "keys is NULL");
  REFUSED_BLOCKS(blocks.count, 0, "count is 0");
  REFUSED_BLOCKS(blocks.count, SIZE_MAX, "count is");
  REFUSED_BLOCKS(blocks.groups, NULL, "groups is NULL");
  REFUSED_BLOCKS(blocks.group_count, 1, "group_count is 1: 2 to 2");
  REFUSED_BLOCKS(blocks.group_count, SIZE_MAX, "group_count is");
  REFUSED_BLOCKS(groups[0].slots, NULL, "group 0: slots is NULL");
  REFUSED_BLOCKS(groups[0].slot_count, SIZE_MAX, "group 0: slot_count is");
  REFUSED_BLOCKS(groups[1].slot_count, WINDOW_SLOTS - 1, "group 1: slot_count is 71: 72 to 72");
  REFUSED_BLOCKS(groups[1].tokens, NULL, "group 1: slot_count is 72: 128 to 128");
  REFUSED_BLOCKS(groups[1].tokens, kNone, "group 1: slot_count is 72: 0 to 0");
  CHECK(codes[0] == EMS_INVALID_ARGUMENT && codes[3] == EMS_INVALID_ARGUMENT);
  CHECK_REFUSED(ems_kv_load_blocks(writer.kv, NULL, NULL, codes, &leading), "blocks is NULL");
  CHECK_REFUSED(ems_kv_load_blocks(NULL, &writer.blocks, NULL, codes, &leading), "kv is NULL");
  CHECK_REFUSED(ems_kv_load_blocks(writer.kv, &writer.blocks, NULL, codes, NULL), "leading");
  CHECK_REFUSED(ems_kv_save_blocks(writer.kv, &writer.blocks, 3, NULL, codes, &saved),
                "phase is 3");
  CHECK_REFUSED(ems_kv_load_blocks_submit(writer.kv, NULL, 1, &writer.blocks, NULL, codes),
                "queue is NULL");
  CHECK_REFUSED(ems_kv_save_blocks_submit(writer.kv, NULL, 1, NULL, 0, NULL, codes), "blocks");

  /* The call with one list of slots is for one group. */
  CHECK_REFUSED(
      ems_kv_save(writer.kv, writer.keys, BLOCKS, writer.full, FULL_SLOTS, NULL, codes, NULL),
      "group_count is 1: 2 to 2");

  writer.window[5] = SLOTS; /* none of it */
  CHECK(ems_kv_load_blocks(writer.kv, &writer.blocks, NULL, codes, &leading) == EMS_OUT_OF_RANGE);
  CHECK(codes[0] == EMS_OUT_OF_RANGE && codes[3] == EMS_OUT_OF_RANGE);
  writer.window[5] = INT64_MIN;
  CHECK(ems_kv_load_layers(writer.kv, &writer.blocks, NULL, &load) == EMS_OUT_OF_RANGE);
  writer.window[5] = writer.window[6]; /* twice */
  CHECK_REFUSED(ems_kv_load_layers(writer.kv, &writer.blocks, NULL, &load), "slot");
  CHECK(load == NULL);
  ems_kv_unregister(NULL);
  ems_layer_load_destroy(NULL);
  close_engine(&writer);
  return 0;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(ems_client*);
  } kTests[] = {{"groups", test_groups},
                {"layers", test_layers},
                {"ranks", test_ranks},
                {"policy", test_policy},
                {"bad", test_bad}};
  ems_client_options options;
  ems_client* client;
  size_t i;
  int failed = 2;
  if (argc != 3) return 2;
  ems_log_level("warn");
  ems_client_options_init(&options, sizeof(options));
  options.controller = argv[2];
  CHECK(ems_connect(&options, &client) == EMS_OK);
  for (i = 0; i < sizeof(kTests) / sizeof(kTests[0]); ++i) {
    if (strcmp(argv[1], kTests[i].name) == 0) failed = kTests[i].run(client);
  }
  ems_client_destroy(client);
  return failed;
}
