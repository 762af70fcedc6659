// One model with one sequence, the prompt cache in front of it: completes prompts one after another.
//
// Bound: waitingMax completions wait while one runs; more are refused. Threading: that of JavaScript.
import {getLlama, LlamaLogLevel} from 'node-llama-cpp';

import {PromptCache} from './prompt_cache.mjs';
import {Refused} from './refused.mjs';
import {Turns} from './turns.mjs';

export class CompletionEngine {
  #llama;
  #model;
  #context;
  #sequence;
  #cache;
  #turns;
  #vocabulary; // texts of all tokens
  #tokenLengthMax;

  /** cache: options of PromptCache.open, or null: without EMS. Throws what node-llama-cpp and PromptCache.open throw. */
  static async open({modelPath, contextSize, threads, cache, waitingMax = 64}) {
    const engine = new CompletionEngine();
    engine.#turns = new Turns(waitingMax);
    engine.#llama = await getLlama({gpu: false, build: 'never', skipDownload: true, logLevel: LlamaLogLevel.error});
    engine.#model = await engine.#llama.loadModel({modelPath});
    engine.#vocabulary = engine.#model.fileInfo.metadata.tokenizer.ggml.tokens;
    engine.#tokenLengthMax = engine.#vocabulary.reduce((most, token) => Math.max(most, token.length), 1);
    engine.#context = await engine.#model.createContext({contextSize, threads, flashAttention: true});
    engine.#sequence = engine.#context.getSequence();
    engine.#cache = cache && await PromptCache.open({context: engine.#context, modelPath, ...cache});
    return engine;
  }

  /**
   * Tokens of a text, with the model's first one, or of a list of tokens. In a text the names of special tokens stand for these, as
   * in llama.cpp's server. Cost: blocks; of a text that cannot fit, nothing. Throws Refused: 400  no prompt, a token that the model
   * does not have, or more of them than the context has room for.
   */
  tokensOf(prompt) {
    const most = this.#context.contextSize - 1;
    if (typeof prompt === 'string' && prompt.length > most * this.#tokenLengthMax) {
      throw new Refused(400, `the prompt has ${prompt.length} characters, the context takes ${most} tokens`);
    }
    const {tokens: special} = this.#model;
    const first = special.shouldPrependBosToken && special.bos !== null ? [special.bos] : [];
    const tokens = typeof prompt === 'string' ? [...first, ...this.#model.tokenize(prompt, true)] : prompt;
    if (tokens.length === 0) throw new Refused(400, 'the prompt is empty');
    if (tokens.length > most) throw new Refused(400, `the prompt has ${tokens.length} tokens, the context takes ${most}`);
    const unknown = tokens.find((token) => token >= this.#vocabulary.length);
    if (unknown !== undefined) throw new Refused(400, `the model has no token ${unknown}`);
    return tokens;
  }

  /**
   * Throws Refused: 503  a completion that comes now is not made: too many wait, or the engine is closed. Costs nothing: ask before
   * the body of a request is read.
   */
  checkRoom() {
    this.#turns.check();
  }

  /**
   * Completes `tokens` by `tokensMax` at most (-1: what the context takes), when those before it are done. isCached: false computes
   * all of the prompt. onText(text, tokens): as they come. signal: ends it early; while it waits, by throwing the reason.
   * Returns {tokens, isAtEnd, promptTokens, residentTokens, cachedTokens, promptMs, predictedMs}; promptMs: to the first token.
   * Throws Refused: 503  as checkRoom(), and to those that wait when the engine is closed.
   */
  complete({tokens, tokensMax, sampling, isCached, signal}, onText) {
    return this.#turns.take(() => this.#complete({tokens, tokensMax, sampling, isCached, signal}, onText), signal);
  }

  /** After what runs, and what is being saved; what waits is refused. */
  async close() {
    await this.#turns.close();
    await this.#cache?.close();
    await this.#context.dispose();
    await this.#model.dispose();
    await this.#llama.dispose();
  }

  async #complete({tokens, tokensMax, sampling, isCached, signal}, onText) {
    const begin = performance.now();
    const room = this.#context.contextSize - tokens.length;
    const most = tokensMax < 0 ? room : Math.min(tokensMax, room);
    const answer = [];
    const text = new TextOf(this.#model);
    let [promptMs, isAtEnd, figures] = [0, false, {residentTokens: 0, cachedTokens: 0}];
    if (!signal?.aborted && most > 0) {
      let rest;
      ({rest, ...figures} = await this.#prefill(tokens, isCached));
      isAtEnd = true;
      for await (const token of this.#sequence.evaluate(rest, sampling)) {
        if (answer.length === 0) promptMs = performance.now() - begin;
        answer.push(token);
        onText(text.push(token), [token]);
        isAtEnd = answer.length < most && !signal?.aborted;
        if (!isAtEnd) break;
      }
      onText(text.end(), []);
    }
    const {residentTokens, cachedTokens} = figures;
    return {
      tokens: answer, isAtEnd, promptTokens: tokens.length, residentTokens, cachedTokens, promptMs,
      predictedMs: performance.now() - begin - promptMs,
    };
  }

  async #prefill(tokens, isCached) {
    const sequence = this.#sequence;
    if (isCached && this.#cache) return this.#cache.prefill(sequence, tokens);
    if (isCached) await sequence.adaptStateToTokens(tokens.slice(0, -1), false);
    else await sequence.clearHistory();
    const residentTokens = sequence.nextTokenIndex;
    // As the cache does, so that all bits are the same: llama.cpp computes smaller batches by other kernels.
    const end = Math.floor((tokens.length - BATCH_MIN) / BATCH_MIN) * BATCH_MIN;
    if (end > residentTokens) await sequence.evaluateWithoutGeneratingNewTokens(tokens.slice(residentTokens, end));
    return {rest: tokens.slice(sequence.nextTokenIndex), residentTokens, cachedTokens: 0};
  }
}

const BATCH_MIN = 64; // tokens
const PENDING_MAX = 4; // bytes of a character, each of which may be a token

/** Text of tokens that come one by one: bytes of a character are held until it is whole. */
class TextOf {
  #model;
  #said = [];
  #pending = [];

  constructor(model) {
    this.#model = model;
  }

  push(token) {
    this.#pending.push(token);
    const isWhole = this.#pending.length >= PENDING_MAX || !this.#text().endsWith('\ufffd');
    return isWhole ? this.end() : '';
  }

  /** What is held. */
  end() {
    if (this.#pending.length === 0) return '';
    const text = this.#text();
    this.#said = [...this.#said, ...this.#pending].slice(-PENDING_MAX);
    this.#pending = [];
    return text;
  }

  #text() {
    return this.#model.detokenize(this.#pending, false, this.#said);
  }
}
