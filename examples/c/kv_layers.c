/* An engine with paged KV: registers its tensors, loads what the pool has layer by layer while it
 * computes, and saves the rest.
 *
 *   kv_layers [host:port of the controller]
 *
 * docs/C_API.md quotes the parts between the marks; tests/integrations/c runs all of it. */
#include <ems.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
  LAYERS = 4,
  ROW = 512 + 64, /* elements of a token in a layer: MLA latent and rope */
  PAGES = 64,
  PAGE_TOKENS = 16,
  BLOCK_TOKENS = 128,
  BLOCKS = 8,
  TOKENS = BLOCKS * BLOCK_TOKENS,
  LAYER_MS = 500 /* what a layer may take before computing it is the better choice */
};

static uint16_t kv[LAYERS][PAGES * PAGE_TOKENS][ROW]; /* the engine's KV memory, bf16 */

static int complain(const char* what) {
  fprintf(stderr, "%s: %s\n", what, ems_last_error());
  return 1;
}

/* Stands for prefill: the rows of a block follow from its tokens. */
static void compute(size_t layer, const int32_t* tokens, const int64_t* slots, size_t from) {
  size_t at, i;
  for (at = from * BLOCK_TOKENS; at < TOKENS; ++at) {
    for (i = 0; i < ROW; ++i)
      kv[layer][slots[at]][i] = (uint16_t)(tokens[at] * 7 + (int)(layer + i));
  }
}

/* [paged] */
static ems_kv* open_kv(ems_client* client, ems_context** context) {
  static const uint32_t groups[LAYERS] = {0, 0, 0, 0}; /* hybrid models have more than one */
  ems_kv_tensor tensors[LAYERS] = {{0}};
  ems_kv_options options;
  ems_context_options domain;
  ems_kv* kv_handle = NULL;
  char layout[256];
  size_t length, i;
  for (i = 0; i < LAYERS; ++i) { /* GQA engines have two tensors in each layer: K and V */
    tensors[i].data = kv[i];
    tensors[i].bytes = sizeof(kv[i]);
    tensors[i].layer = (uint32_t)i;
    tensors[i].dtype = EMS_KV_BFLOAT16;
    tensors[i].order = EMS_KV_TOKENS_FIRST;
    tensors[i].blocks = PAGES;
    tensors[i].block_tokens = PAGE_TOKENS;
    tensors[i].heads = 1;
    tensors[i].head_size = ROW;
  }
  ems_kv_options_init(&options, sizeof(options));
  options.layer_groups = groups;
  options.layer_count = LAYERS;
  options.shared_by_tp = 1; /* MLA: all ranks hold the same bytes */
  options.tp_rank = 0;
  options.tp_size = 1;
  options.save_policy = EMS_SAVE_PREFILL_ONLY;
  if (ems_kv_fingerprint_with(tensors, LAYERS, &options, layout, sizeof(layout), &length)) {
    return NULL; /* ems_last_error() names the tensor */
  }
  ems_context_options_init(&domain, sizeof(domain));
  domain.model = "fingerprint of the weights";
  domain.dtype = "bf16";
  domain.kv_layout = layout; /* blocks of another layout have other keys */
  domain.block_tokens = BLOCK_TOKENS;
  ems_context_create(client, &domain, context);
  ems_kv_register_with(*context, tensors, LAYERS, &options, &kv_handle);
  return kv_handle;
}
/* [paged] */

/* [layers] */
/* Fills all layers for the prompt and returns how many of its leading blocks came from the pool.
 * `blocks` are those that ems_context_lookup has found. */
static size_t prefill(ems_kv* kv_handle, const ems_kv_blocks* blocks, const int32_t* tokens,
                      const int64_t* slots) {
  size_t have = blocks->count, leading;
  uint32_t layer;
  ems_layer_load* load = NULL;
  if (have > 0 && ems_kv_load_layers(kv_handle, blocks, NULL, &load) != EMS_OK) have = 0;
  for (layer = 0; layer < LAYERS; ++layer) {
    if (have > 0 && ems_layer_load_wait(load, layer, LAYER_MS, &leading, NULL) != EMS_OK) {
      ems_layer_load_cancel(load); /* too slow, or gone since: from here on nothing is written */
      have = 0;
      layer = 0; /* once more from the first, without the pool */
    }
    compute(layer, tokens, slots, have);
  }
  ems_layer_load_destroy(load);
  return have;
}
/* [layers] */

static int serve(ems_context* context, ems_kv* kv_handle, const int32_t* tokens) {
  char keys[BLOCKS * 32];
  int64_t slots[TOKENS]; /* the engine's block table says where each token's row is */
  ems_kv_slots group = {0};
  ems_kv_blocks blocks = {0};
  ems_kv_saved saved;
  size_t count, there = 0, have, i;
  for (i = 0; i < TOKENS; ++i) slots[i] = (int64_t)i;
  if (ems_context_hash_tokens(context, tokens, TOKENS, NULL, keys, BLOCKS, &count) != EMS_OK) {
    return complain("hash");
  }
  ems_context_lookup(context, keys, count, NULL, NULL, &there);
  group.slots = slots;
  group.slot_count = there * BLOCK_TOKENS;
  blocks.keys = keys;
  blocks.count = there;
  blocks.groups = &group;
  blocks.group_count = 1;
  have = prefill(kv_handle, &blocks, tokens, slots);
  printf("%u blocks loaded, %u computed\n", (unsigned)have, (unsigned)(count - have));
  if (have == count) return 0;
  /* All blocks, so that the list is the same on all ranks; those that are there move no byte. */
  group.slot_count = count * BLOCK_TOKENS;
  blocks.count = count;
  if (ems_kv_save_blocks(kv_handle, &blocks, EMS_PHASE_PREFILL, NULL, NULL, &saved) != EMS_OK) {
    return complain("save");
  }
  return saved.stored == count ? 0 : complain("save: blocks were there");
}

int main(int argc, char** argv) {
  static uint16_t computed[PAGES * PAGE_TOKENS][ROW];
  int32_t tokens[TOKENS];
  int failed = 1, i;
  ems_client* client;
  ems_context* context = NULL;
  ems_kv* kv_handle;
  ems_client_options options;
  ems_client_options_init(&options, sizeof(options));
  if (argc > 1) options.controller = argv[1];
  if (ems_connect(&options, &client) != EMS_OK) return complain("connect");
  for (i = 0; i < TOKENS; ++i) tokens[i] = 11 * i + 3;
  kv_handle = open_kv(client, &context);
  if (kv_handle != NULL) {
    failed = serve(context, kv_handle, tokens); /* computes all */
    memcpy(computed, kv[LAYERS - 1], sizeof(computed));
    memset(kv, 0, sizeof(kv));
    failed = serve(context, kv_handle, tokens) || failed; /* loads all */
    failed = memcmp(computed, kv[LAYERS - 1], sizeof(computed)) != 0 || failed;
  } else {
    complain("register");
  }
  ems_kv_unregister(kv_handle);
  ems_context_destroy(context);
  ems_client_destroy(client);
  return failed;
}
