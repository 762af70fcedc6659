// The prompt cache of a context of node-llama-cpp: the longest prefix that the pool has is restored, the rest is evaluated, and
// states at new checkpoints are saved in the background.
//
// Invariant: trouble with the pool is a miss. What is thrown comes from the engine, or is a mistake in the options.
// Bound: savesMax states wait to be stored; more are dropped. Threading: that of JavaScript; sequences may take turns.
import {Code, Durability, EmsLibrary} from './ems_library.mjs';
import {defaultDigestCache, modelDigest} from './file_digest.mjs';
import {KeyDomain, domainOf} from './key_domain.mjs';
import {MemoryFile} from './memory_file.mjs';
import {ObjectClient} from './object_client.mjs';
import {StateStore} from './state_store.mjs';

const DEFAULTS = {
  library: 'libems.so.0',
  controller: '127.0.0.1:7400',
  namespace: 'default',
  shmToken: null,
  lora: [], // [{path, scale}] of the context, in its order
  cacheSalt: '', // those with different salts share nothing
  stepTokens: 64, // prefixes are looked up at multiples of this
  restTokensMin: 64, // tokens of a prompt that are computed in any case; see docs/engines/LLAMA_CPP.md on equal bits
  saveEveryTokens: 512, // a multiple of stepTokens: saved on the way, besides the last step of a prompt; 0: that alone
  durability: 'default', // or 'dram', 'ssd'
  partBytes: 4 << 20, // largest value; halved by itself where the pool takes no such values
  savesMax: 4,
  lookupTimeoutMs: 100,
  loadTimeoutMs: 5000,
  saveTimeoutMs: 30_000,
  startTimeoutMs: 1000,
  reconnectMs: 5000, // without a pool, between two attempts
  digestCache: defaultDigestCache(), // file that remembers hashes of model files; null: none
  koffi: null, // the module, for applications whose node_modules this package does not see
};

export class PromptCache {
  #context;
  #library;
  #domain;
  #options;
  #client = null;
  #store = null;
  #connecting = null;
  #nextConnect = 0;
  #saves = new Map(); // key → promise
  #closed = false;

  /** Counters since open(). Tokens are those of prompts. */
  stats = {
    prompts: 0, promptTokens: 0, hits: 0, cachedTokens: 0, saves: 0, savesFailed: 0, savesDropped: 0, loadsFailed: 0,
    lookupsFailed: 0, connectsFailed: 0,
  };

  /**
   * Opens the cache of `context` (a LlamaContext), whose model is the file `modelPath`; DEFAULTS lists the other options.
   * Reads the model file when its hash is not known yet. Without a pool all is a miss, and connecting is tried again later.
   * Throws for options that make no sense, a file that cannot be read, and without the library.
   */
  static async open({context, modelPath, ...more}) {
    const options = {...DEFAULTS, ...more};
    check(context, modelPath, options);
    const koffi = options.koffi ?? (await import('koffi')).default;
    const library = new EmsLibrary(koffi, options.library);
    library.logLevel(process.env.EMS_LOG_LEVEL ?? 'error');
    const lora = [];
    for (const {path, scale = 1} of options.lora) {
      lora.push({digest: await modelDigest(path, options.digestCache), scale});
    }
    const digest = await modelDigest(modelPath, options.digestCache);
    const {llama} = context.model;
    const domain = new KeyDomain(domainOf({llama, context, modelDigest: digest, lora, cacheSalt: options.cacheSalt}));
    const cache = new PromptCache(context, library, domain, options);
    await cache.#connect();
    return cache;
  }

  /** For open() alone. */
  constructor(context, library, domain, options) {
    this.#context = context;
    this.#library = library;
    this.#domain = domain;
    this.#options = options;
  }

  /** Is there a pool? */
  get connected() {
    return this.#store !== null;
  }

  /**
   * Brings `sequence` to hold the beginning of `tokens`, from the pool or computed, and returns the `rest` (restTokensMin
   * or more, unless the sequence held them already), from which to generate:
   *
   *   const {rest} = await cache.prefill(sequence, tokens);
   *   for await (const token of sequence.evaluate(rest)) …
   *
   * What the sequence holds already is kept where it is the longer prefix. Beside `rest`: cachedTokens from the pool,
   * residentTokens from the sequence; lookupMs and restoreMs, what the pool cost.
   */
  async prefill(sequence, tokens) {
    if (sequence.context !== this.#context) throw new TypeError('the sequence is of another context than the cache');
    const {stepTokens, restTokensMin} = this.#options;
    const checkpoints = this.#domain.checkpoints(tokens.slice(0, Math.max(0, tokens.length - restTokensMin)), stepTokens);
    const begun = performance.now();
    const codes = await this.#lookup(checkpoints);
    const lookedUp = performance.now();
    const resident = commonPrefix(sequence.contextTokens, tokens.slice(0, -1));
    const cached = await this.#restore(sequence, tokens, checkpoints.filter(
      ({tokens: length}, i) => codes[i] === Code.OK && length > resident));
    const restored = performance.now();
    if (cached === 0 && sequence.nextTokenIndex > 0) await sequence.adaptStateToTokens(tokens.slice(0, -1), false);
    const start = sequence.nextTokenIndex;
    // One that was found and could not be loaded is written again.
    const absent = checkpoints.filter(
      ({tokens: length}, i) => length > start && (codes[i] === Code.NOT_FOUND || codes[i] === Code.OK));
    await this.#evaluate(sequence, tokens, checkpoints.at(-1)?.tokens ?? 0, this.#worthSaving(absent, checkpoints.at(-1)));
    this.stats.prompts += 1;
    this.stats.promptTokens += tokens.length;
    this.stats.hits += cached > 0 ? 1 : 0;
    this.stats.cachedTokens += cached;
    return {
      rest: tokens.slice(sequence.nextTokenIndex), cachedTokens: cached, residentTokens: cached > 0 ? 0 : start,
      lookupMs: lookedUp - begun, restoreMs: restored - lookedUp,
    };
  }

  /** Waits until all that is being saved is stored or given up. */
  async flush() {
    await Promise.all(this.#saves.values());
  }

  /** As flush(), and disconnects. Later prompts are misses. */
  async close() {
    this.#closed = true;
    await this.flush();
    await this.#connecting;
    const client = this.#client;
    this.#client = this.#store = null;
    await client?.close();
  }

  #connect() {
    const {controller, namespace, shmToken, startTimeoutMs, partBytes} = this.#options;
    this.#nextConnect = performance.now() + this.#options.reconnectMs;
    this.#connecting ??= ObjectClient.connect(this.#library, {controller, namespace, shmToken, startTimeoutMs})
      .then((client) => {
        this.#client = client;
        this.#store = new StateStore(client, this.#domain, partBytes, this.#options);
      }, () => {
        this.stats.connectsFailed += 1;
      })
      .finally(() => {
        this.#connecting = null;
      });
    return this.#connecting;
  }

  async #lookup(checkpoints) {
    if (this.#store === null && !this.#closed && performance.now() >= this.#nextConnect) this.#connect();
    const undeclared = (this.#context._loraAdapters?.size ?? 0) !== this.#options.lora.length;
    if (this.#store === null || checkpoints.length === 0 || undeclared) return checkpoints.map(() => Code.UNAVAILABLE);
    try {
      const codes = await this.#store.lookup(checkpoints);
      if (codes.some((code) => code !== Code.OK && code !== Code.NOT_FOUND)) this.stats.lookupsFailed += 1;
      return codes;
    } catch {
      this.stats.lookupsFailed += 1;
      return checkpoints.map(() => Code.UNAVAILABLE);
    }
  }

  /** Restores the longest of `found`: how many tokens; 0: nothing, and the sequence is as it was or empty. */
  async #restore(sequence, tokens, found) {
    if (found.length === 0) return 0;
    let file = null;
    let touched = false;
    try {
      file = new MemoryFile(this.#library.koffi);
      const checkpoint = await this.#store.loadLongest(found, tokens, file);
      if (checkpoint !== null) {
        touched = true;
        await sequence.loadStateFromFile(file.path, {acceptRisk: true}); // of this model: the key says so
        if (commonPrefix(sequence.contextTokens, tokens) === checkpoint.tokens
          && sequence.nextTokenIndex === checkpoint.tokens) return checkpoint.tokens;
      }
    } catch {
      // a state that the library refuses, or no memory for it: a miss
    } finally {
      await file?.close();
    }
    this.stats.loadsFailed += 1;
    if (touched) await sequence.clearHistory();
    return 0;
  }

  /** Of `candidates` those at multiples of saveEveryTokens, and the last checkpoint of the prompt. */
  #worthSaving(candidates, last) {
    const {saveEveryTokens} = this.#options;
    return candidates.filter((one) => one === last || (saveEveryTokens > 0 && one.tokens % saveEveryTokens === 0));
  }

  async #evaluate(sequence, tokens, end, saves) {
    for (const checkpoint of saves) {
      await evaluateUpTo(sequence, tokens, checkpoint.tokens);
      await this.#save(sequence, checkpoint);
    }
    await evaluateUpTo(sequence, tokens, end);
  }

  /** Copies the state, which takes milliseconds, and stores it in the background. */
  async #save(sequence, checkpoint) {
    const name = checkpoint.key.toString();
    if (this.#store === null || this.#saves.has(name)) return;
    if (this.#saves.size >= this.#options.savesMax) {
      this.stats.savesDropped += 1;
      return;
    }
    let file = null;
    let fileSize;
    try {
      file = new MemoryFile(this.#library.koffi);
      ({fileSize} = await sequence.saveStateToFile(file.path));
    } catch {
      this.stats.savesFailed += 1;
      await file?.close();
      return;
    }
    this.#saves.set(name, this.#saveFile(checkpoint, file, fileSize).finally(() => this.#saves.delete(name)));
  }

  async #saveFile(checkpoint, file, fileSize) {
    try {
      const code = await this.#store.save(checkpoint, file, fileSize);
      this.stats[code === Code.OK ? 'saves' : 'savesFailed'] += 1;
    } catch {
      this.stats.savesFailed += 1;
    } finally {
      await file.close();
    }
  }
}

function check(context, modelPath, options) {
  const unknown = Object.keys(options).filter((name) => !(name in DEFAULTS));
  if (unknown.length > 0) throw new TypeError(`there is no option ${unknown.join(', ')}`);
  if (typeof context?.getSequence !== 'function') throw new TypeError('context: a LlamaContext is needed');
  if (typeof modelPath !== 'string') throw new TypeError('modelPath: the path of the model file is needed');
  if (!(options.durability in Durability)) {
    throw new TypeError(`durability: '${options.durability}' is none of ${Object.keys(Durability).join(', ')}`);
  }
  const {stepTokens, restTokensMin, saveEveryTokens, partBytes} = options;
  if (!Number.isInteger(stepTokens) || stepTokens < 1) throw new TypeError(`stepTokens: ${stepTokens} is not above 0`);
  if (!Number.isInteger(restTokensMin) || restTokensMin < 1) {
    throw new TypeError(`restTokensMin: ${restTokensMin} is not above 0: a token to generate from is needed`);
  }
  if (!Number.isInteger(saveEveryTokens) || saveEveryTokens < 0 || saveEveryTokens % stepTokens !== 0) {
    throw new TypeError(`saveEveryTokens: ${saveEveryTokens} is no multiple of stepTokens (${stepTokens})`);
  }
  if (!Number.isInteger(Math.log2(partBytes)) || partBytes < 1 << 16 || partBytes > 1 << 30) {
    throw new TypeError(`partBytes: ${partBytes} is no power of two from 64 KiB to 1 GiB`);
  }
}

function commonPrefix(a, b) {
  const most = Math.min(a.length, b.length);
  let same = 0;
  while (same < most && a[same] === b[same]) ++same;
  return same;
}

async function evaluateUpTo(sequence, tokens, end) {
  const begin = sequence.nextTokenIndex;
  if (begin < end) await sequence.evaluateWithoutGeneratingNewTokens(tokens.slice(begin, end));
}
