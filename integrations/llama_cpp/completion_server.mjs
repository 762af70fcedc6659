// HTTP in the shape of llama.cpp's server: POST /completion and /v1/completions, streamed or whole; GET /health.
//
// Bound: CONNECTIONS_MAX, with a body of BODY_BYTES_MAX each; the engine's own bound of those that wait. A client that goes ends its
// completion.
import http from 'node:http';

import {Refused} from './refused.mjs';

const BODY_BYTES_MAX = 4 << 20;
const CONNECTIONS_MAX = 256; // more are closed as they come
const OFFERED = ['prompt', 'stream', 'cache_prompt', 'temperature', 'top_k', 'top_p', 'seed']; // and the bound of the path
// These make no other text: of the last ones each says more of a sampler, which is off or refused.
const WITHOUT_EFFECT = ['model', 'user', 'id_slot', 'stream_options', 'timings_per_token', 'return_tokens', 'return_progress', 'n_keep',
  'repeat_last_n', 'dry_base', 'dry_allowed_length', 'dry_penalty_last_n', 'dry_sequence_breakers', 'xtc_threshold', 'mirostat_tau',
  'mirostat_eta', 'dynatemp_exponent'];
// With these values, or with what is false or empty, another field makes no other text either.
const NEUTRAL = {n: 1, best_of: 1, repeat_penalty: 1, typical_p: 1, top_n_sigma: -1};

/** A server that listens nowhere yet. engine: a CompletionEngine; name: of the model. */
export function completionServer(engine, name) {
  const server = http.createServer((request, response) => {
    answer(engine, name, request, response).catch((error) => {
      const code = error instanceof Refused ? error.code : 500;
      const said = {error: {code, message: error.message, type: TYPES[code] ?? 'server_error'}};
      if (response.headersSent) response.end(event(said));
      else send(response, code, said);
    });
  });
  server.maxConnections = CONNECTIONS_MAX;
  return server;
}

const TYPES = {400: 'invalid_request_error', 404: 'not_found_error', 413: 'invalid_request_error', 503: 'unavailable_error'};

async function answer(engine, name, request, response) {
  const [path] = request.url.split('?', 1);
  if (request.method === 'GET' && path === '/health') return send(response, 200, {status: 'ok'});
  const shape = request.method === 'POST' ? SHAPES[path] : undefined;
  if (shape === undefined) throw new Refused(404, `there is no ${request.method} ${path}`);
  const gone = new AbortController();
  response.on('close', () => gone.abort()); // said once: whoever listens when the body is there may be too late
  engine.checkRoom();
  const asked = askedFor(await bodyOf(request), shape);
  engine.checkRoom(); // a body may take long, and tokens of a text are costly
  const tokens = engine.tokensOf(asked.prompt);
  const said = shape.begin(name);
  let text = '';
  const result = await engine.complete({...asked, tokens, signal: gone.signal}, (more, one) => {
    text += more;
    if (asked.isStream) stream(response, said.chunk(more, one));
  });
  if (!asked.isStream) return send(response, 200, said.whole(text, result));
  stream(response, said.last(result));
  return response.end(said.end);
}

/** An event; the first one begins the answer, so that what fails before it has a code of HTTP. */
function stream(response, value) {
  if (!response.headersSent) response.writeHead(200, {'content-type': 'text/event-stream', 'cache-control': 'no-cache'});
  response.write(event(value));
}

/** /completion, of llama.cpp. */
function llamaBegin(name) {
  const last = (text, result) => ({
    index: 0, content: text, tokens: [], stop: true, model: name, stop_type: result.isAtEnd ? 'eos' : 'limit',
    tokens_predicted: result.tokens.length, tokens_evaluated: result.promptTokens, truncated: false, timings: timingsOf(result),
  });
  return {
    chunk: (content, tokens) => ({index: 0, content, tokens, stop: false}),
    last: (result) => last('', result),
    whole: (text, result) => ({...last(text, result), tokens: result.tokens}),
    end: '',
  };
}

/** /v1/completions, of OpenAI. */
function openAiBegin(model) {
  const created = Math.floor(Date.now() / 1000);
  const one = (text, reason, more = {}) => ({
    id: `cmpl-${created}`, object: 'text_completion', created, model, choices: [{text, index: 0, logprobs: null, finish_reason: reason}],
    ...more,
  });
  const last = (text, result) => one(text, result.isAtEnd ? 'stop' : 'length', {
    usage: {
      prompt_tokens: result.promptTokens, completion_tokens: result.tokens.length,
      total_tokens: result.promptTokens + result.tokens.length,
    },
    timings: timingsOf(result),
  });
  return {
    chunk: (text) => one(text, null), last: (result) => last('', result), whole: last, end: 'data: [DONE]\n\n',
  };
}

const SHAPES = {
  '/completion': {begin: llamaBegin, tokensMax: 'n_predict', tokensMaxDefault: -1},
  '/v1/completions': {begin: openAiBegin, tokensMax: 'max_tokens', tokensMaxDefault: 16},
};

/** cache_n: prompt tokens that were not computed, ems_n: those of them that came from EMS; prompt_ms: time to the first token. */
function timingsOf({tokens, promptTokens, residentTokens, cachedTokens, promptMs, predictedMs}) {
  const reused = residentTokens + cachedTokens;
  return {
    cache_n: reused, ems_n: cachedTokens, prompt_n: promptTokens - reused, prompt_ms: promptMs, predicted_n: tokens.length,
    predicted_ms: predictedMs,
  };
}

function askedFor(body, {tokensMax, tokensMaxDefault}) {
  const of = (field, is, what, otherwise) => {
    const value = body[field] ?? otherwise;
    if (!is(value)) throw new Refused(400, `${field}: ${shown(value)} is not ${what}`);
    return value;
  };
  const isToken = (value) => Number.isInteger(value) && value >= 0;
  const isBoolean = (value) => typeof value === 'boolean';
  for (const [field, value] of Object.entries(body)) {
    if (field !== tokensMax && !OFFERED.includes(field) && !WITHOUT_EFFECT.includes(field) && !isNeutral(field, value)) {
      throw new Refused(400, `${field} is not offered: ${shown(value)}`);
    }
  }
  return {
    prompt: of('prompt', (value) => typeof value === 'string' || (Array.isArray(value) && value.every(isToken)), 'a text or tokens'),
    tokensMax: of(tokensMax, (value) => Number.isInteger(value) && value >= -1, 'a number of tokens, or -1', tokensMaxDefault),
    isStream: of('stream', isBoolean, 'a boolean', false),
    isCached: of('cache_prompt', isBoolean, 'a boolean', true),
    sampling: {
      temperature: of('temperature', (value) => Number.isFinite(value) && value >= 0, 'a number of 0 or more', 0.8),
      topK: of('top_k', isToken, 'a number of tokens', 40),
      topP: of('top_p', (value) => Number.isFinite(value) && value > 0 && value <= 1, 'above 0 and at most 1', 0.95),
      seed: of('seed', (value) => value === undefined || Number.isInteger(value), 'an integer'),
    },
  };
}

/** The beginning of it: a prompt may have megabytes. */
function shown(value) {
  return String(JSON.stringify(value)).slice(0, 100);
}

function isNeutral(field, value) {
  const isEmpty = value === null || value === false || value === '' || (typeof value === 'object' && Object.keys(value).length === 0);
  return isEmpty || value === (NEUTRAL[field] ?? 0);
}

async function bodyOf(request) {
  const parts = [];
  let bytes = 0;
  for await (const part of request) {
    bytes += part.length;
    if (bytes <= BODY_BYTES_MAX) parts.push(part); // the rest is read all the same: the client hears why only when it has sent all
  }
  if (bytes > BODY_BYTES_MAX) throw new Refused(413, `a body has ${BODY_BYTES_MAX} bytes at most`);
  let body;
  try {
    body = JSON.parse(Buffer.concat(parts).toString());
  } catch (error) {
    throw new Refused(400, `the body is no JSON: ${error.message}`);
  }
  if (body === null || typeof body !== 'object' || Array.isArray(body)) throw new Refused(400, 'the body is no JSON object');
  return body;
}

const event = (value) => `data: ${JSON.stringify(value)}\n\n`;

function send(response, code, value) {
  response.writeHead(code, {'content-type': 'application/json; charset=utf-8'});
  response.end(JSON.stringify(value));
}
