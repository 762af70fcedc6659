// Names of states: equal keys mean equal tokens and everything else equal that a state depends on.
import crypto from 'node:crypto';

const FORMAT = 1; // of keys, manifests and parts: another one is another cache

/** Fields of what makes two states of equal tokens different, of an engine as it runs. */
export function domainOf({llama, context, modelDigest, lora, cacheSalt}) {
  return {
    format: FORMAT,
    library: [llama.llamaCppRelease.repo, llama.llamaCppRelease.release, llama.buildType],
    device: llama.gpu || 'cpu',
    model: modelDigest,
    kvTypes: [context.kvCacheKeyType, context.kvCacheValueType],
    flashAttention: context.flashAttention, // values lie transposed without it
    swaFullCache: context._swaFullCache ?? null, // there is no public name for it
    lora: lora.map(({digest, scale}) => [digest, scale]),
    cacheSalt,
  };
}

export class KeyDomain {
  #root;

  /** `fields`: values that JSON can say. Their order does not matter. */
  constructor(fields) {
    const ordered = Object.entries(fields).sort(([a], [b]) => (a < b ? -1 : 1));
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
