// The prompt cache of a context of node-llama-cpp: the longest prefix that the pool has is restored, the rest is evaluated, and
// states at new checkpoints are saved in the background.
//
// Invariant: trouble with the pool is a miss. What is thrown comes from the engine, or is a mistake in the options.
// Bound: savesMax states wait to be stored; more are dropped. Threading: that of JavaScript; sequences may take turns.
import fs from 'node:fs';

import {checkedOptions} from './cache_options.mjs';
import {Code, EmsLibrary} from './ems_library.mjs';
import {modelDigest} from './file_digest.mjs';
import {KeyDomain, domainOf} from './key_domain.mjs';
import {MemoryFile} from './memory_file.mjs';
import {ObjectClient} from './object_client.mjs';
import {ShiftedSequences} from './shifted_sequences.mjs';
import {StateStore} from './state_store.mjs';

export class PromptCache {
  #context;
  #shifted;
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
   * Opens the cache of `context` (a LlamaContext), whose model is the file `modelPath`; the other options: cache_options.mjs.
   * Reads the model file when its hash is not known yet. Without a pool all is a miss, and connecting is tried again later.
   * Throws for options that make no sense or are not those of the context, a file that cannot be read, a namespace that does
   * not exist, and without the library.
   */
  static async open({context, modelPath, ...more}) {
    const options = checkedOptions(more);
    await checkEngine(context, modelPath, options.lora);
    const koffi = options.koffi ?? (await import('koffi')).default;
    const library = new EmsLibrary(koffi, options.library);
    library.logLevel(process.env.EMS_LOG_LEVEL ?? 'error');
    const lora = [];
    for (const {path, scale = 1} of options.lora) {
      lora.push({digest: await modelDigest(path, options.digestCache), scale});
    }
    const digest = await modelDigest(modelPath, options.digestCache);
    const devices = await context.model.llama.getGpuDeviceNames();
    const domain = new KeyDomain(domainOf({context, devices, modelDigest: digest, lora, cacheSalt: options.cacheSalt}));
    const cache = new PromptCache(context, library, domain, options);
    const error = await cache.#connect();
    if (error?.code === Code.NOT_FOUND) {
      throw new Error(`there is no namespace '${options.namespace}' at ${options.controller}`);
    }
    if (error?.code === Code.INVALID_ARGUMENT) throw error;
    return cache;
  }

  /** For open() alone. */
  constructor(context, library, domain, options) {
    this.#context = context;
    this.#shifted = new ShiftedSequences(context);
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
   * What the sequence holds already is kept where it is the longer prefix; after a context shift, or a load of your own, nothing
   * is saved of it. Beside `rest`: cachedTokens from the pool, residentTokens from the sequence; lookupMs and restoreMs, what the
   * pool cost.
   */
  async prefill(sequence, tokens) {
    if (sequence.context !== this.#context) throw new TypeError('the sequence is of another context than the cache');
    const {stepTokens, restTokensMin} = this.#options;
    // Of a prompt that does not fit no more than the context takes without a shift: the rest is the engine's own business.
    const end = Math.min(tokens.length - restTokensMin, this.#context.contextSize - 1);
    const checkpoints = this.#domain.checkpoints(tokens.slice(0, Math.max(0, end)), stepTokens);
    const begun = performance.now();
    const codes = await this.#lookup(checkpoints);
    const lookedUp = performance.now();
    const resident = commonPrefix(sequence.contextTokens, tokens.slice(0, -1));
    const cached = await this.#restore(sequence, tokens, checkpoints.filter(
      ({tokens: length}, i) => codes[i] === Code.OK && length > resident));
    const restored = performance.now();
    if (cached === 0 && sequence.nextTokenIndex > 0) await sequence.adaptStateToTokens(tokens.slice(0, -1), false);
    const start = sequence.nextTokenIndex;
    const savable = this.#shifted.has(sequence) ? [] : checkpoints;
    // One that was found and could not be loaded is written again.
    const absent = savable.filter(
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

  /** Waits until all that is being saved is stored or abandoned. */
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

  /** Nothing, or why there is no connection. Never rejects. */
  #connect() {
    const {controller, namespace, shmToken, startTimeoutMs, partBytes} = this.#options;
    this.#nextConnect = performance.now() + this.#options.reconnectMs;
    this.#connecting ??= ObjectClient.connect(this.#library, {controller, namespace, shmToken, startTimeoutMs})
      .then((client) => {
        this.#client = client;
        this.#store = new StateStore(client, this.#domain, partBytes, this.#options);
      }, (error) => {
        this.stats.connectsFailed += 1;
        return error;
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
          && sequence.nextTokenIndex === checkpoint.tokens) {
          this.#shifted.forget(sequence);
          return checkpoint.tokens;
        }
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

/** Throws TypeError when these are not the files that the engine runs. Scales of adapters it does not say. */
async function checkEngine(context, modelPath, lora) {
  if (typeof context?.getSequence !== 'function') throw new TypeError('context: a LlamaContext is needed');
  if (typeof modelPath !== 'string') throw new TypeError('modelPath: the path of the model file is needed');
  const loaded = context.model._modelPath;
  if (typeof loaded !== 'string' || !(context._loraAdapters instanceof Set)) {
    throw new TypeError('this node-llama-cpp does not say which files a context was made of');
  }
  if (!await sameFiles([loaded], [modelPath])) {
    throw new TypeError(`modelPath: ${modelPath} is not ${loaded}, of which the context is`);
  }
  const adapters = [...context._loraAdapters].map(({filePath}) => filePath);
  if (lora.length > 0 && !await sameFiles(adapters, lora.map(({path}) => path))) {
    throw new TypeError(`lora: the context has ${adapters.join(', ') || 'none'}`);
  }
}

async function sameFiles(loaded, said) {
  const real = (paths) => Promise.all(paths.map((path) => fs.promises.realpath(path)));
  const [a, b] = [await real(said), await real(loaded)];
  return a.length === b.length && a.every((path, i) => path === b[i]);
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
