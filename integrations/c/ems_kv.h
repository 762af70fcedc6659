/* EMS for C: paged KV, of an engine that names the token slots of its tokens. Included by ems.h,
 * whose rules on codes, handles, threads and structs hold here, too.
 */
#ifndef EMS_KV_H
#define EMS_KV_H

#ifndef EMS_H
#error "include ems.h, which includes this header"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Where an engine keeps its KV, described once; blocks then move by the token slots of their
 * tokens. */
typedef struct ems_kv ems_kv;

enum ems_kv_dtype {
  EMS_KV_FLOAT32 = 0,
  EMS_KV_FLOAT16 = 1,
  EMS_KV_BFLOAT16 = 2,
  EMS_KV_FLOAT8_E4M3 = 3,
  EMS_KV_FLOAT8_E5M2 = 4,
  EMS_KV_INT8 = 5,
  EMS_KV_UINT8 = 6
};
enum ems_kv_order {
  EMS_KV_TOKENS_FIRST = 0, /* [blocks, block_tokens, heads, head_size], "NHD" */
  EMS_KV_HEADS_FIRST = 1   /* [blocks, heads, block_tokens, head_size], "HND" */
};

/* One tensor of one layer: K, V, latent, rope, …. Strides are in bytes; 0: dense. */
typedef struct ems_kv_tensor {
  void* data;
  uint64_t bytes;        /* from `data` to the end of the last element at least */
  uint32_t layer;        /* from 0; tensors of a list are in the order of their layers */
  uint32_t dtype;        /* ems_kv_dtype */
  uint32_t order;        /* ems_kv_order */
  uint32_t block_tokens; /* tokens of a page; need not be the context's */
  uint64_t blocks;       /* pages */
  uint32_t heads;
  uint32_t head_size; /* elements; 0: an empty tensor */
  uint64_t block_stride, token_stride, head_stride;
} ems_kv_tensor;

#define EMS_KV_TENSORS_MAX 4096

/* The text that says which bytes a block consists of, for ems_context_options.kv_layout; ended by
 * NUL; with it its length into `*length`. Addresses, strides and paging are not in it.
 * Errors: EMS_INVALID_ARGUMENT  names the tensor    EMS_OUT_OF_RANGE  capacity is not above
 *   *length, which is set */
EMS_API ems_status ems_kv_fingerprint(const ems_kv_tensor* tensors, size_t count, char* text,
                                      size_t capacity, size_t* length);
/* Registers the tensors, whose memory must stay until ems_kv_unregister and the end of all calls.
 * The context must have been made with their fingerprint as kv_layout: else equal keys could name
 * unequal bytes.
 * Errors: EMS_INVALID_ARGUMENT  tensors that overlap or do not fit their bytes; another layout */
EMS_API ems_status ems_kv_register(ems_context* context, const ems_kv_tensor* tensors, size_t count,
                                   ems_kv** kv);
/* Calls that are submitted run to their end. */
EMS_API void ems_kv_unregister(ems_kv* kv);

/* Load and save as those of the context, with token slots in place of memory:
 * slots[i * T + t] is the token slot (page * block_tokens of the tensors + place in it) of token t
 * of block i, T being the context's block_tokens; slot_count is count * T. A load must not name a
 * token slot twice. Submitted calls copy the slots. For tensors of one group of layers.
 * Errors: EMS_OUT_OF_RANGE  no such token slot; the whole call fails */
EMS_API ems_status ems_kv_load(ems_kv* kv, const void* keys, size_t count, const int64_t* slots,
                               size_t slot_count, const ems_call_options* options,
                               ems_status* codes, size_t* leading);
EMS_API ems_status ems_kv_save(ems_kv* kv, const void* keys, size_t count, const int64_t* slots,
                               size_t slot_count, const ems_call_options* options,
                               ems_status* codes, size_t* stored);
EMS_API ems_status ems_kv_load_submit(ems_kv* kv, ems_cq* queue, uint64_t tag, const void* keys,
                                      size_t count, const int64_t* slots, size_t slot_count,
                                      const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_kv_save_submit(ems_kv* kv, ems_cq* queue, uint64_t tag, const void* keys,
                                      size_t count, const int64_t* slots, size_t slot_count,
                                      const ems_call_options* options, ems_status* codes);

/* --- Groups of layers, ranks that share, what is saved (since ABI 2) -------------------------- */

enum ems_save_policy {
  EMS_SAVE_PREFILL_ONLY = 0,  /* prompts: what a reasoning model decoded is of no more use */
  EMS_SAVE_ALL = 1,           /* decoded tokens, too */
  EMS_SAVE_FINAL_RESPONSE = 2 /* prompts and final responses */
};
/* Where the tokens of a save come from. */
enum ems_save_phase { EMS_PHASE_PREFILL = 0, EMS_PHASE_DECODE = 1, EMS_PHASE_FINAL = 2 };

typedef struct ems_kv_options {
  size_t size;                  /* set by ems_kv_options_init */
  const uint32_t* layer_groups; /* group of each layer, from 0 without gaps; only read by the call
                                   it is given to. Layers of a group have the same pages and token
                                   slots. NULL: one group */
  size_t layer_count;           /* of layer_groups: the tensors' layers; 0 */
  uint32_t save_policy;         /* ems_save_policy; EMS_SAVE_PREFILL_ONLY */
  uint32_t shared_by_tp; /* 1: all ranks hold the same bytes (MLA). Of a save, whose keys must then
                            be the same on all ranks, rank r stores blocks i with i % tp_size == r;
                            all load all. The context must be of rank 0 of 1, so that keys are
                            equal; 0 */
  uint32_t tp_rank, tp_size; /* of this process, for shared_by_tp; 0 of 1 */
  uint64_t layer_read_bytes; /* ems_kv_load_layers reads whole layers, and so much of a block at
                                least; 1 to 2^40; 256 KiB */
} ems_kv_options;

/* Sets the defaults. `size`: sizeof(ems_kv_options) of the caller. Errors: as above. */
EMS_API ems_status ems_kv_options_init(ems_kv_options* options, size_t size);
/* ems_kv_fingerprint and ems_kv_register with options (NULL: defaults). Groups are in the text. */
EMS_API ems_status ems_kv_fingerprint_with(const ems_kv_tensor* tensors, size_t count,
                                           const ems_kv_options* options, char* text,
                                           size_t capacity, size_t* length);
EMS_API ems_status ems_kv_register_with(ems_context* context, const ems_kv_tensor* tensors,
                                        size_t count, const ems_kv_options* options, ems_kv** kv);

/* Token slots of one group of layers, for all blocks of a call, block after block. */
typedef struct ems_kv_slots {
  const int64_t* slots;
  size_t slot_count;      /* the sum of `tokens` */
  const uint32_t* tokens; /* [blocks]: token slots of each block; 0: this group has none (outside of
                             its window). NULL: the context's block_tokens each */
} ems_kv_slots;

/* The blocks of a call. A block's bytes are those of all groups, so how many tokens of a group it
 * has must follow from its key: a block of another length is a miss. */
typedef struct ems_kv_blocks {
  const void* keys;
  size_t count;               /* 1 to EMS_BATCH_MAX */
  const ems_kv_slots* groups; /* [group_count] */
  size_t group_count;         /* as many as were registered */
} ems_kv_blocks;

/* What became of the blocks of a save whose codes are EMS_OK. */
typedef struct ems_kv_saved {
  size_t stored;   /* this call moved their bytes */
  size_t existing; /* the pool had them */
  size_t skipped;  /* left out: for the policy, for another rank, or a key named twice */
} ems_kv_saved;

/* As ems_kv_load and ems_kv_save, which are these with one group and EMS_PHASE_PREFILL. `phase`:
 * ems_save_phase; what the policy leaves out is EMS_OK. `saved` may be NULL. Nothing of `blocks`
 * needs to stay behind a submit. */
EMS_API ems_status ems_kv_load_blocks(ems_kv* kv, const ems_kv_blocks* blocks,
                                      const ems_call_options* options, ems_status* codes,
                                      size_t* leading);
EMS_API ems_status ems_kv_save_blocks(ems_kv* kv, const ems_kv_blocks* blocks, uint32_t phase,
                                      const ems_call_options* options, ems_status* codes,
                                      ems_kv_saved* saved);
EMS_API ems_status ems_kv_load_blocks_submit(ems_kv* kv, ems_cq* queue, uint64_t tag,
                                             const ems_kv_blocks* blocks,
                                             const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_kv_save_blocks_submit(ems_kv* kv, ems_cq* queue, uint64_t tag,
                                             const ems_kv_blocks* blocks, uint32_t phase,
                                             const ems_call_options* options, ems_status* codes);

/* --- Layer by layer (since ABI 2) ------------------------------------------------------------- */

/* A load in the background that fills layer 0 of all blocks, then layer 1, …: an engine computes a
 * layer while those behind it arrive. May be waited for and cancelled by several threads. */
typedef struct ems_layer_load ems_layer_load;

/* Begins one, without waiting; its deadline counts from here. Nothing of `blocks` needs to stay.
 * The token slots must be left alone until the load is over. When async_queue_max is reached it is
 * over at once, all blocks missing and its result EMS_RESOURCE_EXHAUSTED. Errors: as
 * ems_kv_load; then nothing was begun */
EMS_API ems_status ems_kv_load_layers(ems_kv* kv, const ems_kv_blocks* blocks,
                                      const ems_call_options* options, ems_layer_load** load);
/* Waits until `layer` of each block is in place or known to be missing. `*leading`: blocks before
 * the first that is missing. `missing` (NULL, or an array of the load's count): 1 for those that
 * are, which stay missing in all later layers; else 0. A load that failed or was cancelled has all
 * layers; what did not arrive is missing from there on.
 * Errors: EMS_NOT_FOUND  blocks are missing    EMS_DEADLINE_EXCEEDED  `timeout_ms` (0: only looks)
 *   passed first, the load goes on    EMS_OUT_OF_RANGE  no such layer */
EMS_API ems_status ems_layer_load_wait(ems_layer_load* load, uint32_t layer, uint32_t timeout_ms,
                                       size_t* leading, uint8_t* missing);
/* Layers 0 … n - 1 are done: n. 0 for NULL, and in a child after fork(). */
EMS_API size_t ems_layer_load_ready(const ems_layer_load* load);
/* Waits until it is over, for its deadline at most; then what ems_kv_load would say. */
EMS_API ems_status ems_layer_load_result(ems_layer_load* load, ems_status* codes, size_t* leading);
/* Ends it. Behind the reads that are under way, which it waits for, no token slot is written any
 * more; blocks that were not complete are EMS_CANCELLED. */
EMS_API ems_status ems_layer_load_cancel(ems_layer_load* load);
/* Cancels it, if it is not over, and gives it back. */
EMS_API void ems_layer_load_destroy(ems_layer_load* load);

#ifdef __cplusplus
}
#endif

#endif /* EMS_KV_H */
