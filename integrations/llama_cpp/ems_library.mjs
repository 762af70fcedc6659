// libems.so through koffi: the few functions of ems.h that the cache needs, as they are declared there.
//
// Pointers are BigInt; memory is that of Buffers, which does not move.

/** What codes of ems.h mean here. Any other one is a miss, too. */
export const Code = Object.freeze({
  OK: 0,
  CANCELLED: 1,
  UNKNOWN: 2,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  OUT_OF_RANGE: 11,
  UNAVAILABLE: 14,
  DATA_LOSS: 15,
});

/** Bits of ems_call_options.flags. */
export const Flag = Object.freeze({OVERWRITE: 1, NO_TOUCH: 2});

/** ems_durability. */
export const Durability = Object.freeze({default: 0, dram: 1, ssd: 2});

/** ems_verify: every read of shared memory computes the checksum. */
export const VERIFY_ALWAYS = 1;

const ABI_VERSION_MIN = 1;

/** Types live in koffi for the whole process, and a name only once. */
let types = null;

function declareTypes(koffi) {
  if (types !== null) return types;
  types = {
    clientOptions: koffi.struct('ems_client_options', {
      size: 'size_t', controller: 'const char *', name_space: 'const char *', shm_token: 'const char *',
      transport: 'uint32_t', connections_per_server_max: 'uint32_t', async_threads: 'uint32_t',
      async_queue_max: 'uint32_t', connect_timeout_ms: 'uint32_t', op_timeout_ms: 'uint32_t',
      start_timeout_ms: 'uint32_t', reserved: 'uint32_t', staging_bytes: 'uint64_t',
    }),
    callOptions: koffi.struct('ems_call_options', {
      size: 'size_t', timeout_ms: 'uint32_t', flags: 'uint32_t', durability: 'uint32_t', verify: 'uint32_t',
      route_key: 'uintptr_t', route_key_size: 'size_t',
    }),
    pollfd: koffi.struct('ems_pollfd', {fd: 'int', events: 'short', revents: 'short'}),
  };
  return types;
}

export class EmsLibrary {
  /** Loads the library. `koffi` is the module. Throws when the file is not there or not EMS. */
  constructor(koffi, path) {
    const {clientOptions, callOptions} = declareTypes(koffi);
    this.koffi = koffi;
    this.clientOptionsSize = koffi.sizeof(clientOptions);
    this.callOptionsSize = koffi.sizeof(callOptions);
    const ems = loaded(koffi, path);
    this.version = ems.func('const char *ems_version()');
    this.statusName = ems.func('const char *ems_status_name(int32_t code)');
    this.lastError = ems.func('const char *ems_last_error()');
    this.logLevel = ems.func('int32_t ems_log_level(const char *level)');
    this.clientOptionsInit = ems.func('int32_t ems_client_options_init(_Inout_ ems_client_options *o, size_t size)');
    this.connect = ems.func('int32_t ems_connect(const ems_client_options *options, void *client)');
    this.clientDestroy = ems.func('void ems_client_destroy(uintptr_t client)');
    this.callOptionsInit = ems.func('int32_t ems_call_options_init(_Inout_ ems_call_options *o, size_t size)');
    this.cqCreate = ems.func('int32_t ems_cq_create(uintptr_t client, uint32_t depth, void *queue)');
    this.cqFd = ems.func('int ems_cq_fd(uintptr_t queue)');
    this.cqPoll = ems.func('int32_t ems_cq_poll(uintptr_t queue, void *completions, size_t max, void *count)');
    this.cqDestroy = ems.func('void ems_cq_destroy(uintptr_t queue)');
    const submit = 'uintptr_t queue, uint64_t tag, void *items, size_t count, const ems_call_options *options, void *codes';
    this.putSubmit = ems.func(`int32_t ems_put_submit(${submit})`);
    this.getSubmit = ems.func(`int32_t ems_get_submit(${submit}, void *lengths)`);
    this.existsSubmit = ems.func(`int32_t ems_exists_submit(${submit})`);
    this.poll = koffi.load('libc.so.6').func('int poll(_Inout_ ems_pollfd *fds, ulong count, int timeout_ms)');
    const abi = ems.func('uint32_t ems_abi_version()')();
    if (abi < ABI_VERSION_MIN) throw new Error(`${path} has ABI ${abi}; ${ABI_VERSION_MIN} is needed`);
  }

  /** ems_client_options with its defaults and `values`. */
  clientOptions(values) {
    const options = {};
    this.#initialised(this.clientOptionsInit(options, this.clientOptionsSize));
    return Object.assign(options, values);
  }

  /** ems_call_options with its defaults and `values`. */
  callOptions(values) {
    const options = {};
    this.#initialised(this.callOptionsInit(options, this.callOptionsSize));
    return Object.assign(options, values);
  }

  #initialised(code) {
    if (code !== Code.OK) throw new Error(`options: ${this.lastError()}`);
  }
}

function loaded(koffi, path) {
  try {
    return koffi.load(path);
  } catch (error) {
    throw new Error(`EMS's library ${path} cannot be loaded: ${error.message}`, {cause: error});
  }
}

/** Calls a function of the library on another thread: a promise of what it returns. */
export function later(call, ...values) {
  return new Promise((resolve, reject) => {
    call.async(...values, (error, result) => (error ? reject(error) : resolve(result)));
  });
}
