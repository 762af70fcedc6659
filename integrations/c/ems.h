/* EMS for C: put and get blocks of bytes in a pool of memory that many machines contribute to.
 *
 * A miss is always legal, a wrong byte never is: EMS_OK means that all bytes arrived and were
 * verified. Treat every other code like a miss: compute, and go on. Every call has a deadline.
 *
 * Codes and texts. Calls return an ems_status. ems_last_error() has the text of the newest call of
 * the same thread that did not return EMS_OK. Bad arguments are EMS_INVALID_ARGUMENT; what a call
 * writes to is then as it was, but for `codes`, which say the same.
 *
 * Handles are opaque. A function that makes one stores NULL when it fails; the one that takes it
 * back accepts NULL. Handles may be given back in any order: what one needs of another stays until
 * it goes. Giving one back twice, or while another thread uses it, is an error of the caller.
 *
 * Threading: all calls are thread-safe; a view, a buffer and its memory belong to one thread at a
 * time. After fork() a child must connect again; handles of its parent answer
 * EMS_FAILED_PRECONDITION there, and giving them back does nothing.
 *
 * ABI. Structs that may grow begin with their size: give sizeof to ems_*_options_init and set what
 * you need. All other structs are final. Codes and flags are added, never renumbered.
 *
 * Its parts are included at the end: ems_kv.h paged KV, ems_models.h versions of models.
 */
#ifndef EMS_H
#define EMS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EMS_API __attribute__((visibility("default")))
#else
#define EMS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- Versions, codes, texts ------------------------------------------------------------------- */

/* Of this header. It grows with each addition; a library serves every header that is not newer. */
#define EMS_ABI_VERSION 5

/* Of the library that is loaded. */
EMS_API uint32_t ems_abi_version(void);
/* "0.1.0". Lives for ever. */
EMS_API const char* ems_version(void);

/* Numbers are gRPC's. */
enum ems_status_code {
  EMS_OK = 0,
  EMS_CANCELLED = 1,           /* its completion queue was destroyed before it began */
  EMS_UNKNOWN = 2,             /* a server said something that this library does not know */
  EMS_INVALID_ARGUMENT = 3,    /* a mistake of the caller; the text names it */
  EMS_DEADLINE_EXCEEDED = 4,   /* the call's time is over */
  EMS_NOT_FOUND = 5,           /* a miss; or no such namespace */
  EMS_ALREADY_EXISTS = 6,      /* the key holds other bytes, and EMS_OVERWRITE was not given */
  EMS_PERMISSION_DENIED = 7,   /* reserved */
  EMS_RESOURCE_EXHAUSTED = 8,  /* no room, quota, memory, or a queue is full */
  EMS_FAILED_PRECONDITION = 9, /* the namespace is gone, no settled view, or a parent's handle */
  EMS_ABORTED = 10,            /* a put or remove lost its server: it may have been done, or not */
  EMS_OUT_OF_RANGE = 11,       /* the room is too small, the range or the value too large */
  EMS_UNIMPLEMENTED = 12,      /* the server does not offer it */
  EMS_INTERNAL = 13,           /* a bug of EMS */
  EMS_UNAVAILABLE = 14,        /* the controller or a server cannot be reached */
  EMS_DATA_LOSS = 15,          /* bytes did not match their checksum */
  EMS_UNAUTHENTICATED = 16     /* reserved */
};
typedef int32_t ems_status; /* an ems_status_code, or one of a newer library */

/* "EMS_OK", …; "EMS_?" for a number that the library does not know. Lives for ever. */
EMS_API const char* ems_status_name(ems_status code);
/* The text of this thread's newest call that did not return EMS_OK; "" when there was none. Never
 * NULL, at most 511 bytes. Valid until this thread's next call of this library. Texts are for
 * people: they change, codes do not. */
EMS_API const char* ems_last_error(void);
/* What the library writes to standard error, for the whole process: "debug", "info" (where it
 * starts), "warn", "error" or "off". Errors: EMS_INVALID_ARGUMENT  NULL or another word */
EMS_API ems_status ems_log_level(const char* level);

/* --- Connecting ------------------------------------------------------------------------------- */

typedef struct ems_client ems_client;

enum ems_transport {
  EMS_TRANSPORT_AUTO = 0, /* on a server's own machine: its memory and Unix socket; TCP otherwise */
  EMS_TRANSPORT_TCP = 1,
  EMS_TRANSPORT_UNIX = 2
};

typedef struct ems_client_options {
  size_t size;            /* set by ems_client_options_init */
  const char* controller; /* "host:port", of several with commas; "127.0.0.1:7400" */
  const char* name_space; /* "default" */
  const char* shm_token;  /* for servers that ask for one before they share memory; NULL */
  uint32_t transport;     /* ems_transport; EMS_TRANSPORT_AUTO */
  uint32_t connections_per_server_max; /* 1 to 1024; 8 */
  uint32_t async_threads;              /* that run submitted calls; 1 to 256; 2 */
  uint32_t async_queue_max;    /* submitted calls that may wait for one; 1 to 1048576; 4096 */
  uint32_t connect_timeout_ms; /* to one server; 1 to 60000; 200 */
  uint32_t op_timeout_ms;      /* a call's deadline unless it sets its own: this, and its bytes at
                                  100 MB/s, 30 s at most; 1 to 30000; 1000 */
  uint32_t start_timeout_ms;   /* of ems_connect; 1 to 60000; 5000 */
  uint32_t reserved;           /* 0 */
  uint64_t staging_bytes;      /* most that ems_buffer_alloc hands out; 4096 to 2^40; 256 MiB */
} ems_client_options;

/* Sets the defaults. `size`: sizeof(ems_client_options) of the caller.
 * Errors: EMS_INVALID_ARGUMENT  NULL, or a size that this library does not know */
EMS_API ems_status ems_client_options_init(ems_client_options* options, size_t size);

/* Connects to the controller and waits for a first view of the servers. `options` NULL: defaults.
 * One client a process is enough. Cost: blocks for start_timeout_ms at most.
 * Errors: EMS_UNAVAILABLE  no controller    EMS_NOT_FOUND  no such namespace */
EMS_API ems_status ems_connect(const ems_client_options* options, ems_client** client);
/* Disconnects, at once or when the last queue, context, view and buffer of this client has been
 * given back. Calls that are submitted run to their end. */
EMS_API void ems_client_destroy(ems_client* client);
/* What the client has done since ems_connect, as Prometheus text: counts (ems_client_…_total), and
 * what calls took (ems_client_call_seconds). `*length` is the text's, without a NUL, also with
 * EMS_OUT_OF_RANGE, which writes nothing else. Cost: about 20 us for each thread that has called.
 * Errors: EMS_OUT_OF_RANGE  `size` is smaller */
EMS_API ems_status ems_client_metrics(ems_client* client, char* into, size_t size, size_t* length);

/* --- Buffers and options of calls ------------------------------------------------------------- */

/* A piece of memory. What is only read is not written through `base`. */
typedef struct ems_iov {
  void* base;
  size_t size;
} ems_iov;

/* One value in memory: its pieces, in order. 1 byte at least in all. */
typedef struct ems_pieces {
  const ems_iov* iov;
  size_t count; /* 1 to EMS_PIECES_MAX */
} ems_pieces;

#define EMS_KEY_BYTES_MAX 512
#define EMS_PIECES_MAX 65536
#define EMS_BATCH_MAX 65536

enum ems_call_flags {
  EMS_OVERWRITE = 1, /* puts: replace other bytes under the key; readers see old or new, whole */
  EMS_NO_TOUCH = 2   /* reads and look-ups: do not count as a use */
};
enum ems_durability {
  EMS_DURABILITY_DEFAULT = 0, /* as the namespace says */
  EMS_DURABILITY_DRAM = 1,    /* done when in memory */
  EMS_DURABILITY_SSD = 2      /* done when on the SSD: survives a restart of the server */
};
/* Which reads of a server's shared memory verify the checksum; what comes over a socket always is
 * verified. */
enum ems_verify {
  EMS_VERIFY_DEFAULT = 0, /* as the namespace says */
  EMS_VERIFY_ALWAYS = 1,
  EMS_VERIFY_SAMPLED = 2, /* one read in 64 */
  EMS_VERIFY_NEVER = 3
};

/* What a call may choose; NULL wherever it is asked for means the defaults. What does not concern
 * a call is ignored. */
typedef struct ems_call_options {
  size_t size;           /* set by ems_call_options_init */
  uint32_t timeout_ms;   /* the whole call's; 0: the client's or context's default; 0 */
  uint32_t flags;        /* ems_call_flags; 0 */
  uint32_t durability;   /* ems_durability, of puts; EMS_DURABILITY_DEFAULT */
  uint32_t verify;       /* ems_verify, of reads; EMS_VERIFY_DEFAULT */
  const void* route_key; /* decides which server, for all keys of the call; NULL: each its own key.
                            Who reads must give the one that was given at the put. Not for calls of
                            a context. */
  size_t route_key_size; /* 0 to EMS_KEY_BYTES_MAX; 0 */
} ems_call_options;

/* Sets the defaults. `size`: sizeof(ems_call_options) of the caller. Errors: as above. */
EMS_API ems_status ems_call_options_init(ems_call_options* options, size_t size);

/* --- One object ------------------------------------------------------------------------------- */

/* Keys are 1 to EMS_KEY_BYTES_MAX bytes of anything. Errors of all calls that follow, beside those
 * named: EMS_UNAVAILABLE, EMS_DEADLINE_EXCEEDED, EMS_DATA_LOSS, EMS_FAILED_PRECONDITION. */

/* Stores `size` (at least 1) bytes. Storing the same bytes again is EMS_OK and stores nothing.
 * Errors: EMS_ALREADY_EXISTS    EMS_RESOURCE_EXHAUSTED  no room or quota
 *   EMS_OUT_OF_RANGE  above the server's largest value    EMS_UNIMPLEMENTED  no such durability */
EMS_API ems_status ems_put(ems_client* client, const void* key, size_t key_size, const void* data,
                           size_t size, const ems_call_options* options);
/* The same, gathered from pieces. */
EMS_API ems_status ems_putv(ems_client* client, const void* key, size_t key_size,
                            const ems_pieces* value, const ems_call_options* options);

/* Copies the value into `data`, which has room for `capacity` (at least 1) bytes, and its length
 * into `*length`. After an error `data` is undefined and `*length` 0.
 * Errors: EMS_NOT_FOUND    EMS_OUT_OF_RANGE  no room for all of it */
EMS_API ems_status ems_get(ems_client* client, const void* key, size_t key_size, void* data,
                           size_t capacity, size_t* length, const ems_call_options* options);
/* The same, scattered over pieces. */
EMS_API ems_status ems_getv(ems_client* client, const void* key, size_t key_size,
                            const ems_pieces* into, size_t* length,
                            const ems_call_options* options);
/* Copies bytes [offset, offset + size) of the value; they are verified like a whole one.
 * Errors: EMS_NOT_FOUND    EMS_OUT_OF_RANGE  the range ends beyond the value */
EMS_API ems_status ems_get_range(ems_client* client, const void* key, size_t key_size,
                                 uint64_t offset, void* data, size_t size,
                                 const ems_call_options* options);
/* The same, scattered over pieces, which say how many bytes. */
EMS_API ems_status ems_get_rangev(ems_client* client, const void* key, size_t key_size,
                                  uint64_t offset, const ems_pieces* into,
                                  const ems_call_options* options);

/* EMS_OK: it is there. EMS_NOT_FOUND: it is not. */
EMS_API ems_status ems_exists(ems_client* client, const void* key, size_t key_size,
                              const ems_call_options* options);
/* The length of the value. Errors: EMS_NOT_FOUND */
EMS_API ems_status ems_stat(ems_client* client, const void* key, size_t key_size, uint64_t* length,
                            const ems_call_options* options);
/* Errors: EMS_NOT_FOUND  there was none */
EMS_API ems_status ems_remove(ems_client* client, const void* key, size_t key_size,
                              const ems_call_options* options);

/* --- Listing keys ----------------------------------------------------------------------------- */

/* A walk over the keys of the client's namespace, on all servers. A key that exists from beginning
 * to end comes at least once, and possibly more than once; one that is put or removed meanwhile
 * comes or not. One thread at a time. */
typedef struct ems_scan ems_scan;

enum ems_tier {
  EMS_TIER_UNKNOWN = 0,
  EMS_TIER_DRAM = 1, /* also when it is on the SSD as well */
  EMS_TIER_SSD = 2   /* on the SSD alone */
};

#define EMS_UNKNOWN_MS UINT64_MAX

typedef struct ems_key_info {
  const void* key; /* key_size bytes; valid until the next call on the scan */
  size_t key_size;
  uint64_t size;     /* of the value */
  uint64_t age_ms;   /* since it came to its server's DRAM; EMS_UNKNOWN_MS when it is not in it */
  uint64_t idle_ms;  /* since it was used there, likewise */
  uint32_t tier;     /* ems_tier, or one of a newer library */
  uint32_t reserved; /* 0 */
} ems_key_info;

/* Of keys that begin with `prefix`; all, when prefix_size is 0. `options`: timeout_ms is that of
 * each ems_scan_next; the rest is passed over. Asks no server yet. */
EMS_API ems_status ems_scan_begin(ems_client* client, const void* prefix, size_t prefix_size,
                                  ems_scan** scan, const ems_call_options* options);
/* The next key, in no order. Cost: a round trip to a server for each 1,024 keys, and for each some
 * thousand that do not begin so; a timeout may pass for each of these.
 * Errors: EMS_NOT_FOUND  that was all    others  keys of one server are missing, which the text
 *   names, once for each such server: call again for those of the others.
 *   EMS_UNIMPLEMENTED  that server's version has no scans */
EMS_API ems_status ems_scan_next(ems_scan* scan, ems_key_info* info);
EMS_API void ems_scan_destroy(ems_scan* scan);

/* --- Without copies --------------------------------------------------------------------------- */

/* A value in place: the server's memory when it is on this machine, else a copy that the view owns.
 * It holds that memory until it is released; must not be read in a child after fork(). */
typedef struct ems_view ems_view;

/* Errors: EMS_NOT_FOUND    EMS_RESOURCE_EXHAUSTED  this client's views hold as much as they may */
EMS_API ems_status ems_get_view(ems_client* client, const void* key, size_t key_size,
                                ems_view** view, const ems_call_options* options);
/* Read-only; valid until the view is released. NULL for a NULL view. */
EMS_API const void* ems_view_data(const ems_view* view);
EMS_API size_t ems_view_size(const ems_view* view);
/* 1: the server's memory, 0: a copy. */
EMS_API int ems_view_is_mapped(const ems_view* view);
/* Computes the checksum now. Cost: one pass over the bytes. Errors: EMS_DATA_LOSS */
EMS_API ems_status ems_view_verify(const ems_view* view);
EMS_API void ems_view_release(ems_view* view);

/* Memory that servers of this machine can read: what is put from here is copied once, into the
 * pool. 4 KiB aligned, contents undefined. Use it, or parts of it, like any memory. */
typedef struct ems_buffer ems_buffer;

/* Errors: EMS_RESOURCE_EXHAUSTED  staging_bytes are in use */
EMS_API ems_status ems_buffer_alloc(ems_client* client, size_t size, ems_buffer** buffer);
EMS_API void* ems_buffer_data(const ems_buffer* buffer);
EMS_API size_t ems_buffer_size(const ems_buffer* buffer);
EMS_API void ems_buffer_release(ems_buffer* buffer);

/* --- Batches ---------------------------------------------------------------------------------- */

/* One key of a batch. `value`: what to put, or the room for what is got; ignored otherwise. */
typedef struct ems_item {
  const void* key;
  size_t key_size;
  ems_pieces value;
} ems_item;

/* 1 to EMS_BATCH_MAX items; all servers at once, one deadline for all. Each item's code goes to
 * codes[i], each length to lengths[i] (0 when it has none); both are arrays of `count`, or NULL.
 *
 * Returns EMS_OK when all codes are EMS_OK, EMS_NOT_FOUND when the others are misses, else the
 * first code that is neither. */
EMS_API ems_status ems_put_batch(ems_client* client, const ems_item* items, size_t count,
                                 const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_get_batch(ems_client* client, const ems_item* items, size_t count,
                                 const ems_call_options* options, ems_status* codes,
                                 uint64_t* lengths);
EMS_API ems_status ems_exists_batch(ems_client* client, const ems_item* items, size_t count,
                                    const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_remove_batch(ems_client* client, const ems_item* items, size_t count,
                                    const ems_call_options* options, ems_status* codes);

/* --- Completion queue ------------------------------------------------------------------------- */

/* Calls that run in the background, and one descriptor that says when some are done:
 *
 *   ems_get_submit(queue, tag, …)  →  poll(ems_cq_fd(queue))  →  ems_cq_poll(queue, …)
 */
typedef struct ems_cq ems_cq;

typedef struct ems_completion {
  uint64_t tag;    /* as it was submitted */
  ems_status code; /* what the call without _submit would return */
  uint32_t reserved;
  uint64_t value; /* batches and saves: items whose code is EMS_OK; look-ups and loads: leading
                     blocks; loads of models: bytes */
} ems_completion;

/* `depth` (1 to 1048576): calls that are under way or done and not yet polled. Allocates for all.
 * Errors: EMS_RESOURCE_EXHAUSTED  no memory or no descriptor */
EMS_API ems_status ems_cq_create(ems_client* client, uint32_t depth, ems_cq** queue);
/* An eventfd that is readable while completions wait. Poll it, never read or close it. It may be
 * readable once too often. -1 for a NULL queue. */
EMS_API int ems_cq_fd(const ems_cq* queue);
/* Takes up to `max` completions, in the order in which they came, and says how many in `*count`;
 * 0 is EMS_OK, too. Never blocks. When one that it took is not EMS_OK, ems_last_error() has the
 * text of the last such one: with `max` 1, of that one. */
EMS_API ems_status ems_cq_poll(ems_cq* queue, ems_completion* completions, size_t max,
                               size_t* count);
/* Calls that have not begun are cancelled; waits for those that are under way, for their deadlines
 * at most. Completions that were not polled are gone. After it no memory of any call is touched. */
EMS_API void ems_cq_destroy(ems_cq* queue);

/* The batches above, later. They never block; the deadline counts from here, waiting included.
 * EMS_OK: exactly one completion with `tag` will come, within the deadline. Else: none will come,
 * and nothing was done.
 *
 * Items, keys and lists of pieces are copied. The bytes of values, `codes` and `lengths` must stay
 * until the completion has been polled or the queue destroyed.
 * Errors: EMS_RESOURCE_EXHAUSTED  the queue or the client's async_queue_max is full */
EMS_API ems_status ems_put_submit(ems_cq* queue, uint64_t tag, const ems_item* items, size_t count,
                                  const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_get_submit(ems_cq* queue, uint64_t tag, const ems_item* items, size_t count,
                                  const ems_call_options* options, ems_status* codes,
                                  uint64_t* lengths);
EMS_API ems_status ems_exists_submit(ems_cq* queue, uint64_t tag, const ems_item* items,
                                     size_t count, const ems_call_options* options,
                                     ems_status* codes);
EMS_API ems_status ems_remove_submit(ems_cq* queue, uint64_t tag, const ems_item* items,
                                     size_t count, const ems_call_options* options,
                                     ems_status* codes);

/* --- Prefix caching of KV blocks -------------------------------------------------------------- */

/* Names blocks of tokens so that equal keys mean equal whole prefixes in equal domains, and moves
 * the blocks. */
typedef struct ems_context ems_context;

enum ems_hash_kind {
  EMS_HASH_SHA256 = 0,  /* keys of 32 bytes; for tenants who do not trust each other */
  EMS_HASH_XXH3_128 = 1 /* keys of 16 bytes, several times faster; for one tenant */
};

typedef struct ems_label {
  const char* name;
  const char* value;
} ems_label;

/* Everything that makes two blocks with equal tokens different belongs in here. Texts are at most
 * 64 KiB, lists at most 4096 long; all are copied. */
typedef struct ems_context_options {
  size_t size;            /* set by ems_context_options_init */
  const char* model;      /* fingerprint of the weights, not just a name; required */
  const char* dtype;      /* of the KV elements: "bf16"; required */
  const char* kv_layout;  /* order and shape of the bytes in a block: "NHD/80x8x128"; required */
  const char* lora;       /* adapter; NULL: none */
  const char* cache_salt; /* those with different salts share nothing; NULL: none */
  const char* const* multimodal_hashes; /* of images, …, with positions, in prompt order; NULL */
  size_t multimodal_count;
  const ems_label* custom; /* whatever else an engine tells apart, in its order; NULL */
  size_t custom_count;
  uint32_t tp_rank, tp_size; /* 0 of 1 */
  uint32_t pp_rank, pp_size; /* 0 of 1 */
  uint32_t block_tokens;     /* 16 to 512; 128 */
  uint32_t hash_kind;        /* ems_hash_kind; EMS_HASH_SHA256 */
  uint32_t timeout_ms;       /* a call's deadline unless it sets its own: this, and its bytes at
                                100 MB/s, 30 s at most; 1 to 30000; 1000 */
  uint32_t durability;       /* ems_durability, of saved blocks; EMS_DURABILITY_DEFAULT */
} ems_context_options;

/* Sets the defaults. `size`: sizeof(ems_context_options) of the caller. Errors: as above. */
EMS_API ems_status ems_context_options_init(ems_context_options* options, size_t size);
EMS_API ems_status ems_context_create(ems_client* client, const ems_context_options* options,
                                      ems_context** context);
/* Calls that are submitted run to their end. */
EMS_API void ems_context_destroy(ems_context* context);

/* Bytes of a key, 32 or 16. Key arrays are `count` keys one after the other. 0 for NULL. */
EMS_API size_t ems_context_key_size(const ems_context* context);
/* Keys of the full blocks of `tokens` into `keys`, which has room for `capacity` keys; their number
 * into `*count`. A last block that is not full has none. `parent`: the key of the block before
 * tokens[0]; NULL when they start the prompt. `keys` NULL with `capacity` 0: only counts.
 * Errors: EMS_OUT_OF_RANGE  capacity below *count, which is set */
EMS_API ems_status ems_context_hash_tokens(const ems_context* context, const int32_t* tokens,
                                           size_t token_count, const void* parent, void* keys,
                                           size_t capacity, size_t* count);
/* The key of a block that the engine has named itself, by 1 to EMS_KEY_BYTES_MAX bytes. */
EMS_API ems_status ems_context_own_key(const ems_context* context, const void* name,
                                       size_t name_size, void* key);

/* For all below: `keys` are 1 to EMS_BATCH_MAX keys in prompt order; codes[i] is for keys[i], or
 * `codes` is NULL; what is returned follows from the codes as for batches. */

/* How many leading blocks are in the pool, into `*leading`. Behind the first absent one, codes may
 * be EMS_NOT_FOUND without a look. Between this and a load a block may be evicted. */
EMS_API ems_status ems_context_lookup(ems_context* context, const void* keys, size_t count,
                                      const ems_call_options* options, ems_status* codes,
                                      size_t* leading);
/* Copies block i into into[i], which must be exactly as large as the block (else it is a miss).
 * The memory of a block that did not arrive is undefined. `*leading`: blocks before the first that
 * did not arrive. */
EMS_API ems_status ems_context_load(ems_context* context, const void* keys, size_t count,
                                    const ems_pieces* into, const ems_call_options* options,
                                    ems_status* codes, size_t* leading);
/* Stores the blocks that the pool does not have yet. `*stored`: blocks whose bytes this call moved;
 * NULL is fine. A block that another one stored meanwhile is EMS_OK. */
EMS_API ems_status ems_context_save(ems_context* context, const void* keys, size_t count,
                                    const ems_pieces* blocks, const ems_call_options* options,
                                    ems_status* codes, size_t* stored);

/* The same, later; as the other *_submit. `queue` must be of the context's client. */
EMS_API ems_status ems_context_lookup_submit(ems_context* context, ems_cq* queue, uint64_t tag,
                                             const void* keys, size_t count,
                                             const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_context_load_submit(ems_context* context, ems_cq* queue, uint64_t tag,
                                           const void* keys, size_t count, const ems_pieces* into,
                                           const ems_call_options* options, ems_status* codes);
EMS_API ems_status ems_context_save_submit(ems_context* context, ems_cq* queue, uint64_t tag,
                                           const void* keys, size_t count, const ems_pieces* blocks,
                                           const ems_call_options* options, ems_status* codes);

#ifdef __cplusplus
}
#endif

#include "ems_kv.h"
#include "ems_models.h"

#endif /* EMS_H */
