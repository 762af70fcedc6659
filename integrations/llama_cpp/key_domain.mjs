// Names of states: equal keys mean equal tokens and everything else equal that a state depends on.
import crypto from 'node:crypto';

const FORMAT = 1; // of keys, manifests and parts: another one is another cache

/**
 * Fields of what makes two states of equal tokens different, of an engine as it runs. `devices`: names of its GPUs.
 * Throws TypeError when node-llama-cpp does not say one of them: a guess could be another engine's state.
 */
export function domainOf({context, devices, modelDigest, lora, cacheSalt}) {
  const {model} = context;
  const {llama} = model;
  return {
    format: FORMAT,
    library: [
      told('llamaCppRelease.repo', llama.llamaCppRelease?.repo, 'string'),
      told('llamaCppRelease.release', llama.llamaCppRelease?.release, 'string'),
      told('buildType', llama.buildType, 'string'),
      Object.entries(told('cmakeOptions', llama.cmakeOptions, 'object')).sort(byName),
    ],
    device: [llama.gpu || 'cpu', devices, told('systemInfo', llama.systemInfo, 'string')], // which kernels there are
    gpuLayers: told('gpuLayers', model.gpuLayers, 'number'),
    environment: environmentOf(process.env),
    model: modelDigest,
    metadata: metadataDigest(told('fileInfo.metadata', model.fileInfo?.metadata, 'object')), // with metadataOverrides
    kvTypes: [
      told('kvCacheKeyType', context.kvCacheKeyType, 'number'), told('kvCacheValueType', context.kvCacheValueType, 'number'),
    ],
    flashAttention: told('flashAttention', context.flashAttention, 'boolean', 'string'), // values lie transposed without it
    swaFullCache: told('swaFullCache', context._swaFullCache, 'boolean'), // there is no public name for it
    sequences: told('totalSequences', context.totalSequences, 'number'), // a state is loaded only where there are as many
    batchSize: told('batchSize', context.batchSize, 'number'), // small batches are computed by other kernels
    ropeContext: ropeContextOf(context),
    lora: lora.map(({digest, scale}) => [digest, scale]),
    cacheSalt,
  };
}

function told(name, value, ...types) {
  if (value !== null && types.includes(typeof value)) return value;
  throw new TypeError(`this node-llama-cpp does not say ${name}, which states depend on`);
}

const byName = ([a], [b]) => (a < b ? -1 : 1);

/** Variables that llama.cpp reads: LLAMA_ATTN_ROT_DISABLE changes what lies in a quantised KV cache, others choose kernels. */
export function environmentOf(variables) {
  const ofPrograms = /^LLAMA_(ARG_|API_KEY$)/; // of llama-server and the like, not of the library
  return Object.entries(variables).filter(([name]) => /^(LLAMA|GGML)_/.test(name) && !ofPrograms.test(name)).sort(byName);
}

/** Where a model has two sets of RoPE factors, its context's size chooses; elsewhere null: any size will do. */
function ropeContextOf(context) {
  const {fileInfo} = context.model;
  const tensors = told('fileInfo.fullTensorInfo', fileInfo.fullTensorInfo ?? fileInfo.tensorInfo, 'object');
  if (!tensors.some(({name}) => /rope_factors_(long|short)/.test(name))) return null;
  return told('allocatedContextSize', context.getAllocatedContextSize(), 'number') / context.totalSequences;
}

/**
 * A digest of a GGUF's metadata as the engine sees it: the model file's own digest does not know of overrides. Neither order
 * nor how names are nested matters. Throws TypeError when a name is there twice: which of them counts nobody knows.
 */
export function metadataDigest(metadata) {
  const flat = new Map();
  const add = (value, path) => {
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
      for (const [name, inner] of Object.entries(value)) add(inner, path === '' ? name : `${path}.${name}`);
      return;
    }
    if (flat.has(path)) throw new TypeError(`metadataOverrides: ${path} is said in two ways`);
    flat.set(path, [typeof value, value]);
  };
  add(metadata, '');
  const whole = (_, value) => (typeof value === 'bigint' ? String(value) : value); // JSON knows none
  return crypto.createHash('sha256').update(JSON.stringify([...flat].sort(byName), whole)).digest('hex');
}

export class KeyDomain {
  #root;

  /** `fields`: values that JSON can say. Their order does not matter. */
  constructor(fields) {
    const ordered = Object.entries(fields).sort(byName);
    this.#root = crypto.createHash('sha256').update(JSON.stringify(ordered)).digest();
  }

  /** Keys of the prefixes of `tokens` of step, 2 * step, … tokens: [{tokens, key}], shortest first. Cost: one pass. */
  checkpoints(tokens, step) {
    const words = Int32Array.from(tokens);
    const bytes = Buffer.from(words.buffer, words.byteOffset, words.byteLength);
    const found = [];
    let parent = this.#root;
    for (let end = step; end <= tokens.length; end += step) {
      parent = crypto.createHash('sha256').update(parent).update(bytes.subarray(4 * (end - step), 4 * end)).digest();
      found.push({tokens: end, key: Buffer.from(`llama.cpp/${FORMAT}/prefix/${parent.toString('hex')}`)});
    }
    return found;
  }

  /** The key of a piece of a state with this SHA-256 (hex). Pieces are of one domain as well: tenants share none. */
  part(digest) {
    return Buffer.from(`llama.cpp/${FORMAT}/part/${this.#root.toString('hex', 0, 16)}/${digest}`);
  }
}
