/* EMS for C: versions of models in the pool (since ABI 3). Included by ems.h, whose
 * rules on codes, handles, threads and structs hold here, too.
 */
#ifndef EMS_MODELS_H
#define EMS_MODELS_H

#ifndef EMS_H
#error "include ems.h, which includes this header"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Versions of models in the pool. "qwen/7b@v1" names one, "qwen/7b" that which was added last.
 *
 * Times: timeout_ms 0 means 10 s; 60 s for ems_models_add, 10 minutes for waits and loads.
 * Errors of all calls, beside those named: EMS_NOT_FOUND  no such version    EMS_INVALID_ARGUMENT
 *   EMS_UNAVAILABLE  the controller cannot be reached    EMS_DEADLINE_EXCEEDED */
typedef struct ems_models ems_models;

typedef struct ems_models_options {
  size_t size;            /* set by ems_models_options_init */
  const char* controller; /* "host:port", of several with commas; "127.0.0.1:7400" */
  const char* name_space; /* of versions that are added; made when it is missing; "models" */
  const char* shm_token;  /* as ems_client_options'; NULL */
  const char* access_key; /* this and the next four: for reads of sources by this process, which are
                             ems_models_add and loads without the pool; NULL */
  const char* secret_key;
  const char* session_token;
  const char* bearer_token;
  const char* ca_file;                 /* https: certificates to trust; NULL: the system's */
  uint32_t transport;                  /* ems_transport; EMS_TRANSPORT_AUTO */
  uint32_t connections_per_server_max; /* 1 to 1024; 8 */
  uint32_t async_threads;              /* that run submitted calls; 1 to 64; 2 */
  uint32_t async_queue_max;            /* submitted calls that may wait for one; 1 to 4096; 64 */
  uint32_t start_timeout_ms; /* how long a load waits for the pool's first view; 1 to 60000; 5000 */
  uint32_t reserved;         /* 0 */
} ems_models_options;

/* Sets the defaults. `size`: sizeof(ems_models_options) of the caller. Errors: as above. */
EMS_API ems_status ems_models_options_init(ems_models_options* options, size_t size);
/* Connects to nobody yet. `options` NULL: defaults. */
EMS_API ems_status ems_models_create(const ems_models_options* options, ems_models** models);
/* Submitted calls end with EMS_CANCELLED: waits until nothing of them touches memory any more,
 * which are the reads that are under way. Not from a callback. */
EMS_API void ems_models_destroy(ems_models* models);

enum ems_model_job_state {
  EMS_MODEL_JOB_NONE = 0, /* nobody has asked for it yet */
  EMS_MODEL_JOB_RUNNING = 1,
  EMS_MODEL_JOB_DONE = 2,
  EMS_MODEL_JOB_FAILED = 3,
  EMS_MODEL_JOB_CANCELLED = 4
};

#define EMS_MODEL_NAME_MAX 128
#define EMS_MODEL_PATH_MAX 1024
#define EMS_MODEL_TEXT_MAX 255

/* How often a block is read from the source before the pool knows it: ems_model_info.first_read. */
enum ems_model_first_read {
  EMS_MODEL_READ_ONCE = 0, /* something else protects it, or EMS_MODEL_VERIFY_NEVER */
  EMS_MODEL_READ_TWICE_UNLESS_CHECKED = 1, /* where the source gives no checksum of it */
  EMS_MODEL_READ_TWICE = 2
};

/* A version, as the controller knows it. Texts end with NUL; longer ones are cut. */
typedef struct ems_model_info {
  char model[EMS_MODEL_NAME_MAX + 8];
  char version[EMS_MODEL_NAME_MAX + 8];
  uint64_t bytes; /* of all its files */
  uint32_t files;
  uint32_t blocks;
  uint32_t pinned;           /* 1 or 0 */
  uint32_t job_state;        /* ems_model_job_state; of its last job, and so are the rest */
  uint64_t job_bytes_done;   /* in DRAM since the job began */
  uint64_t job_source_bytes; /* of them, read from the source */
  uint64_t job_elapsed_ms;
  ems_status job_code; /* of EMS_MODEL_JOB_FAILED */
  uint32_t first_read; /* ems_model_first_read: how it was added */
  char job_error[EMS_MODEL_TEXT_MAX + 1];
} ems_model_info;

/* Whether a block is read twice, over two connections, when it is read for the first time, and has
 * to be the same: twice the source's bytes, once. */
enum ems_model_verify {
  EMS_MODEL_VERIFY_AUTO = 0,   /* where the source gives nothing to compare it with: plain http
                                  without a checksum */
  EMS_MODEL_VERIFY_ALWAYS = 1, /* also where it does */
  EMS_MODEL_VERIFY_NEVER = 2 /* nowhere: what is damaged on the way may be cached, and loaded as if
                                it were right */
};

typedef struct ems_model_add_options {
  size_t size;              /* set by ems_model_add_options_init */
  const char* const* files; /* only these, by their paths below the source; NULL: all */
  size_t file_count;
  const char* const* include; /* of those, what matches one of these patterns ("*.safetensors");
                                 NULL: all */
  size_t include_count;
  const char* credentials;  /* the name under which servers find the source's keys; NULL: none */
  uint64_t block_bytes;     /* 64 KiB to 64 MiB; 16 MiB */
  uint64_t bytes_per_s_max; /* of each server, from the source; 0: as fast as it goes */
  uint32_t verify;          /* ems_model_verify; EMS_MODEL_VERIFY_AUTO */
  uint32_t ignore_etags;    /* 1: entity tags of this object store are no MD5 */
} ems_model_add_options;

/* Sets the defaults. `size`: sizeof(ems_model_add_options) of the caller. Errors: as above. */
EMS_API ems_status ems_model_add_options_init(ems_model_add_options* options, size_t size);
/* Makes a version of the files that `url` (a folder, http(s)://, s3://) lists now; reads headers
 * alone. The same files again: what is there; `verify` counts while nobody has used, prefetched or
 * pinned it since it was added. `info` may be NULL in this and all calls below.
 * Errors: EMS_ALREADY_EXISTS  that version has other files, or is to be verified always and may
 * have been read once    EMS_INVALID_ARGUMENT  also a damaged header, which the text names */
EMS_API ems_status ems_models_add(ems_models* models, const char* name, const char* url,
                                  const ems_model_add_options* options, uint32_t timeout_ms,
                                  ems_model_info* info);
/* All versions, in the order in which they were added; their number into `*count`.
 * Errors: EMS_OUT_OF_RANGE  capacity below *count, which is set; `infos` is full */
EMS_API ems_status ems_models_list(ems_models* models, uint32_t timeout_ms, ems_model_info* infos,
                                   size_t capacity, size_t* count);
EMS_API ems_status ems_models_get(ems_models* models, const char* name, uint32_t timeout_ms,
                                  ems_model_info* info);

typedef struct ems_model_file {
  uint64_t bytes;
  char path[EMS_MODEL_PATH_MAX + 8];
} ems_model_file;

/* The files of a version; as ems_models_list. */
EMS_API ems_status ems_models_files(ems_models* models, const char* name, uint32_t timeout_ms,
                                    ems_model_file* files, size_t capacity, size_t* count);

/* Where a version's bytes are. */
typedef struct ems_model_check {
  uint64_t dram_bytes;
  uint64_t ssd_bytes;         /* on SSDs alone */
  uint64_t absent_bytes;      /* a job has to bring them */
  uint64_t unreachable_bytes; /* their servers did not answer */
  uint64_t dram_blocks, ssd_blocks, absent_blocks, unreachable_blocks;
} ems_model_check;

EMS_API ems_status ems_models_check(ems_models* models, const char* name, uint32_t timeout_ms,
                                    ems_model_check* check);
/* Begins a job that brings the version into the servers' DRAM, or joins the one that runs. Does not
 * wait. `priority`: 0 to 1000, higher ones first. */
EMS_API ems_status ems_models_prefetch(ems_models* models, const char* name, uint32_t priority,
                                       uint32_t timeout_ms, ems_model_info* info);
/* Ends the job that runs. */
EMS_API ems_status ems_models_cancel(ems_models* models, const char* name, uint32_t timeout_ms,
                                     ems_model_info* info);
/* A pinned version is not evicted; what is missing of it is brought back. */
EMS_API ems_status ems_models_pin(ems_models* models, const char* name, uint32_t timeout_ms,
                                  ems_model_info* info);
EMS_API ems_status ems_models_unpin(ems_models* models, const char* name, uint32_t timeout_ms,
                                    ems_model_info* info);
/* Forgets a version, which `name` must say. Errors: EMS_FAILED_PRECONDITION  it is pinned */
EMS_API ems_status ems_models_remove(ems_models* models, const char* name, uint32_t timeout_ms);

typedef struct ems_model_progress {
  uint64_t bytes_done;
  uint64_t bytes;       /* in all */
  uint64_t bytes_per_s; /* lately; 0 of loads */
  uint64_t left_ms;     /* at that rate; UINT64_MAX: unknown */
} ems_model_progress;

/* Called several times a second, on the calling thread, or on one of the library's for submitted
 * calls. Not 0 ends the call with EMS_CANCELLED; not the job. */
typedef int (*ems_model_on_progress)(void* user, const ems_model_progress* progress);

/* How the last job gets on. The rate comes from successive calls. */
EMS_API ems_status ems_models_progress(ems_models* models, const char* name, uint32_t timeout_ms,
                                       ems_model_progress* progress);
/* Waits for the end of the job that is running or was the last. `on_progress` may be NULL.
 * Errors: those of the job    EMS_CANCELLED  the job, or this call
 *   EMS_FAILED_PRECONDITION  there is no job */
EMS_API ems_status ems_models_wait(ems_models* models, const char* name, uint32_t timeout_ms,
                                   ems_model_on_progress on_progress, void* user,
                                   ems_model_info* info);
/* The same, later, as the other *_submit; `queue` may be of any client. `info` must stay until the
 * completion has been polled. */
EMS_API ems_status ems_models_wait_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                          const char* name, uint32_t timeout_ms,
                                          ems_model_on_progress on_progress, void* user,
                                          ems_model_info* info);

/* --- Loads of models (since ABI 3) --------------------------------------------------------------
 */

enum ems_model_load_flags {
  EMS_MODEL_VERIFY_DIGESTS = 1, /* SHA-256 of each block, beside the checksum */
  EMS_MODEL_POOL_ONLY = 2,      /* never read the source here: fail instead */
  EMS_MODEL_NO_SYNC = 4         /* folders: whole under its name, not safe from a power failure */
};

typedef struct ems_model_load_options {
  size_t size;               /* set by ems_model_load_options_init */
  uint32_t timeout_ms;       /* 0: 10 minutes; 0 */
  uint32_t flags;            /* ems_model_load_flags; 0 */
  uint32_t threads;          /* 1 to 64; 4 */
  uint32_t pool_patience_ms; /* how long nothing may come before the source is read; 10000 */
  uint32_t priority;         /* of jobs that the load begins; 0 to 1000; 0 */
  uint32_t reserved;         /* 0 */
  uint64_t batch_bytes;      /* that a thread reads at once; 64 KiB to 2^32; 64 MiB */
  const char* const* files;  /* only these; NULL: all. Not for ems_models_load_buffers. Copied */
  size_t file_count;
  ems_model_on_progress on_progress; /* NULL: none */
  void* user;                        /* of on_progress */
} ems_model_load_options;

/* Sets the defaults. `size`: sizeof(ems_model_load_options) of the caller. Errors: as above. */
EMS_API ems_status ems_model_load_options_init(ems_model_load_options* options, size_t size);

/* What a load did. */
typedef struct ems_model_stats {
  uint64_t bytes;        /* that arrived where they were wanted */
  uint64_t dram_bytes;   /* read from the pool's DRAM */
  uint64_t ssd_bytes;    /* read from the pool's SSDs */
  uint64_t source_bytes; /* read from the source by this load */
  uint64_t blocks;
  uint64_t jobs; /* begun or joined */
  uint64_t elapsed_us;
  uint64_t waiting_us;                 /* of it, with nothing to read */
  char detour[EMS_MODEL_TEXT_MAX + 1]; /* why the source was read; "": it was not */
} ems_model_stats;

/* For all loads: bytes are verified before a caller hears of them. Blocks that the pool does not
 * have are brought by a job, or read from the source when the pool does not help. `options` and
 * `stats` may be NULL. After an error memory that was given is undefined.
 * Errors: EMS_NOT_FOUND  no such version or file    EMS_FAILED_PRECONDITION  the source has changed
 *   EMS_CANCELLED  on_progress said so, or ems_models_destroy    what a callback answered
 *
 * Submitted loads copy options, names, lists; what they write to, `stats` included, must stay until
 * the completion has been polled, and its value is the bytes. Callbacks of one call come one at a
 * time, on the library's threads. */

/* A file, and where it goes: exactly its size. */
typedef struct ems_model_buffer {
  const char* path;
  void* data;
  uint64_t size;
} ems_model_buffer;

/* Each file of the list into its memory. Errors: EMS_INVALID_ARGUMENT  also memory of another size
 */
EMS_API ems_status ems_models_load_buffers(ems_models* models, const char* name,
                                           const ems_model_buffer* buffers, size_t count,
                                           const ems_model_load_options* options,
                                           ems_model_stats* stats);
/* Memory for `bytes` of a file into `*memory`. Not EMS_OK ends the load with that code. */
typedef ems_status (*ems_model_room)(void* user, const char* path, uint64_t bytes, void** memory);
/* Each file of options->files, or all that have bytes, into what `room` gives for it. */
EMS_API ems_status ems_models_load_rooms(ems_models* models, const char* name, ems_model_room room,
                                         void* user, const ems_model_load_options* options,
                                         ems_model_stats* stats);
/* Into a folder, made when it is missing. Under its own name a file is whole, or as it was. */
EMS_API ems_status ems_models_load_folder(ems_models* models, const char* name, const char* folder,
                                          const ems_model_load_options* options,
                                          ems_model_stats* stats);

/* A tensor, as a callback sees it; valid until that returns. */
typedef struct ems_model_tensor {
  const char* file;
  const char* name;
  const char* dtype;          /* as the file spells it: "BF16", "F8_E4M3", "Q4_K" */
  const uint64_t* shape;      /* [dimensions], outermost first; of the slice, once that is known */
  const uint64_t* full_shape; /* [dimensions] */
  size_t dimensions;
  void* data; /* row-major, dense; the library's, or what `room` gave; NULL before it is loaded */
  uint64_t bytes; /* of the slice, once that is known */
} ems_model_tensor;

/* Slice `rank` of `ranks` equal ones along `axis`. All 0: the whole tensor. */
typedef struct ems_model_slice {
  uint32_t axis, rank, ranks, reserved;
} ems_model_slice;

typedef struct ems_model_tensors {
  size_t size; /* set by ems_model_tensors_init */
  /* EMS_OK: wanted, the part that `slice` says (the whole unless it is changed); EMS_NOT_FOUND: not
   * wanted; other codes end the load with that code. NULL: all tensors, whole. */
  ems_status (*choose)(void* user, const ems_model_tensor* tensor, ems_model_slice* slice);
  /* Memory for tensor->bytes into `*memory`. NULL: the library's, which goes with the call to
   * on_tensor. */
  ems_status (*room)(void* user, const ems_model_tensor* tensor, void** memory);
  /* It is complete. Required. Not EMS_OK ends the load with that code. */
  ems_status (*on_tensor)(void* user, const ems_model_tensor* tensor);
  void* user;
  uint32_t in_file_order; /* 1: as they lie in the files, what comes early waits; 0: as they come */
  uint32_t reserved;      /* 0 */
} ems_model_tensors;

/* Sets the defaults. `size`: sizeof(ems_model_tensors) of the caller. Errors: as above. */
EMS_API ems_status ems_model_tensors_init(ems_model_tensors* tensors, size_t size);
/* Tensors of *.safetensors and *.gguf files, each as soon as it is complete. Only blocks that a
 * slice touches are read. Errors: EMS_INVALID_ARGUMENT  also a slice that a tensor does not have */
EMS_API ems_status ems_models_load_tensors(ems_models* models, const char* name,
                                           const ems_model_tensors* tensors,
                                           const ems_model_load_options* options,
                                           ems_model_stats* stats);

EMS_API ems_status ems_models_load_buffers_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                                  const char* name, const ems_model_buffer* buffers,
                                                  size_t count,
                                                  const ems_model_load_options* options,
                                                  ems_model_stats* stats);
EMS_API ems_status ems_models_load_rooms_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                                const char* name, ems_model_room room, void* user,
                                                const ems_model_load_options* options,
                                                ems_model_stats* stats);
EMS_API ems_status ems_models_load_folder_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                                 const char* name, const char* folder,
                                                 const ems_model_load_options* options,
                                                 ems_model_stats* stats);
EMS_API ems_status ems_models_load_tensors_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                                  const char* name,
                                                  const ems_model_tensors* tensors,
                                                  const ems_model_load_options* options,
                                                  ems_model_stats* stats);

#ifdef __cplusplus
}
#endif

#endif /* EMS_MODELS_H */
