// The server's HTTP, over an engine that counts: shapes of llama.cpp and OpenAI, what is refused, clients that go.
import assert from 'node:assert/strict';
import {EventEmitter, once} from 'node:events';
import http from 'node:http';
import test from 'node:test';

import {completionServer} from '../../../integrations/llama_cpp/completion_server.mjs';
import {Refused} from '../../../integrations/llama_cpp/refused.mjs';

/** Completes by '1', '2', …; tokens of a text are its characters. */
class Counter {
  asked = [];

  checkRoom() {}

  tokensOf(prompt) {
    if (prompt.length === 0) throw new Refused(400, 'the prompt is empty');
    return [...prompt];
  }

  async complete(asked, onText) {
    this.asked.push(asked);
    const tokens = Array.from({length: Math.max(0, asked.tokensMax)}, (_, i) => i + 1);
    for (const token of tokens) onText(String(token), [token]);
    return {tokens, isAtEnd: false, promptTokens: asked.tokens.length, residentTokens: 1, cachedTokens: 2, promptMs: 5, predictedMs: 7};
  }
}

async function served(t, engine) {
  const server = completionServer(engine, 'model.gguf').listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const post = (url, path, body) => fetch(url + path, {method: 'POST', body: typeof body === 'string' ? body : JSON.stringify(body)});

const events = (text) => text.split('\n\n').slice(0, -1).map((one) => {
  assert.match(one, /^data: /);
  return one === 'data: [DONE]' ? 'DONE' : JSON.parse(one.slice('data: '.length));
});

const TIMINGS = {cache_n: 3, ems_n: 2, prompt_n: 1, prompt_ms: 5, predicted_n: 3, predicted_ms: 7};

test('a completion of llama.cpp, whole and streamed', async (t) => {
  const url = await served(t, new Counter());
  const whole = await (await post(url, '/completion', {prompt: 'abcd', n_predict: 3})).json();
  assert.equal(whole.content, '123');
  assert.deepEqual([whole.tokens, whole.stop, whole.stop_type, whole.tokens_evaluated], [[1, 2, 3], true, 'limit', 4]);
  assert.deepEqual(whole.timings, TIMINGS);
  const response = await post(url, '/completion', {prompt: 'abcd', n_predict: 3, stream: true});
  assert.equal(response.headers.get('content-type'), 'text/event-stream');
  const said = events(await response.text());
  assert.deepEqual(said.map(({content, tokens, stop}) => [content, tokens, stop]),
    [['1', [1], false], ['2', [2], false], ['3', [3], false], ['', [], true]]);
  assert.deepEqual(said.at(-1).timings, TIMINGS);
});

test('a completion of OpenAI, whole and streamed', async (t) => {
  const url = await served(t, new Counter());
  const whole = await (await post(url, '/v1/completions', {prompt: 'abcd', max_tokens: 3})).json();
  assert.deepEqual([whole.object, whole.model, whole.choices[0].text, whole.choices[0].finish_reason],
    ['text_completion', 'model.gguf', '123', 'length']);
  assert.deepEqual(whole.usage, {prompt_tokens: 4, completion_tokens: 3, total_tokens: 7});
  const said = events(await (await post(url, '/v1/completions', {prompt: 'abcd', max_tokens: 3, stream: true})).text());
  assert.equal(said.pop(), 'DONE');
  assert.deepEqual(said.map(({choices: [{text, finish_reason: reason}]}) => [text, reason]),
    [['1', null], ['2', null], ['3', null], ['', 'length']]);
});

test('a stream without a token has its end', async (t) => {
  const url = await served(t, new Counter());
  const response = await post(url, '/completion', {prompt: 'a', n_predict: 0, stream: true});
  assert.equal(response.headers.get('content-type'), 'text/event-stream');
  assert.deepEqual(events(await response.text()).map(({stop}) => stop), [true]);
});

test('settings go on to the engine, with defaults', async (t) => {
  const engine = new Counter();
  const url = await served(t, engine);
  await post(url, '/completion', {prompt: [7, 8]});
  await post(url, '/v1/completions', {prompt: 'a', temperature: 0, top_k: 1, top_p: 0.5, seed: 9, cache_prompt: false});
  const plain = engine.asked.map(({tokens, tokensMax, isCached, sampling}) => ({tokens, tokensMax, isCached, sampling}));
  assert.deepEqual(plain, [
    {tokens: [7, 8], tokensMax: -1, isCached: true, sampling: {temperature: 0.8, topK: 40, topP: 0.95, seed: undefined}},
    {tokens: ['a'], tokensMax: 16, isCached: false, sampling: {temperature: 0, topK: 1, topP: 0.5, seed: 9}},
  ]);
});

test('what makes no sense, or is not offered, is refused by name', async (t) => {
  const engine = new Counter();
  const url = await served(t, engine);
  for (const [body, what] of [['{', /JSON/], ['[]', /object/], [{}, /prompt/], [{prompt: ''}, /empty/], [{prompt: [-1]}, /prompt/],
    [{prompt: 'a', n_predict: 1.5}, /n_predict/], [{prompt: 'a', temperature: '0'}, /temperature/], [{prompt: 'a', n: 2}, /n is not offered/],
    [{prompt: 'a', stream: 1}, /stream/], [{prompt: 'a', stop: ['\n']}, /stop is not offered/],
    [{prompt: 'a', top_p: 0}, /top_p/], [{prompt: 'a', top_p: '1'}, /top_p/],
    [{prompt: 'a', ['x'.repeat(9)]: 'y'.repeat(999)}, /^x{9} is not offered: "y{99}$/], [{prompt: 'a', max_tokens: 3}, /max_tokens is not offered/],
    [{prompt: 'a', repeat_penalty: 1.1}, /repeat_penalty is not offered: 1.1/], [{prompt: 'a', min_p: 0.05}, /min_p/],
    [{prompt: 'a', mirostat: 1}, /mirostat/], [{prompt: 'a', best_of: 2}, /best_of/], [{prompt: 'a', samplers: ['top_k']}, /samplers/],
    [{prompt: 'a', of_tomorrow: true}, /of_tomorrow/]]) {
    const response = await post(url, '/completion', body);
    const {error} = await response.json();
    assert.deepEqual([response.status, error.code, error.type], [400, 400, 'invalid_request_error'], error.message);
    assert.match(error.message, what);
  }
  assert.equal((await post(url, '/completion', 'x'.repeat(5 << 20))).status, 413);
  assert.equal((await post(url, '/nothing', {})).status, 404);
  assert.equal((await fetch(`${url}/completion`)).status, 404);
  assert.equal(engine.asked.length, 0);
  assert.equal((await post(url, '/completion', {prompt: 'a', n_predict: 1, stop: [], n: 1})).status, 200);
  const neutral = {
    model: 'm', user: 'u', n: 1, best_of: 1, echo: false, grammar: '', logprobs: null, logit_bias: {}, samplers: [], min_p: 0, mirostat: 0,
    mirostat_tau: 5, repeat_penalty: 1, repeat_last_n: 64, presence_penalty: 0, frequency_penalty: 0, typical_p: 1, dry_multiplier: 0,
    dry_base: 1.75, stream_options: {include_usage: true},
  };
  assert.equal((await post(url, '/v1/completions', {prompt: 'a', ...neutral})).status, 200);
  assert.equal((await fetch(`${url}//`)).status, 404);
  assert.deepEqual(await (await fetch(`${url}/health`)).json(), {status: 'ok'});
});

test('errors of the engine have their codes, also behind the first event', async (t) => {
  const engine = new Counter();
  const url = await served(t, engine);
  engine.complete = async () => { throw new Refused(503, '64 completions wait already'); };
  assert.equal((await post(url, '/completion', {prompt: 'a'})).status, 503);
  engine.complete = async (_, onText) => {
    onText('1', [1]);
    throw new Error('no memory');
  };
  const response = await post(url, '/completion', {prompt: 'a', stream: true});
  assert.equal(events(await response.text()).at(-1).error.message, 'no memory');
});

test('a client that goes ends its completion', async (t) => {
  const engine = new Counter();
  let ended;
  const isOver = new Promise((resolve) => { ended = resolve; });
  engine.complete = async ({signal}, onText) => {
    onText('1', [1]);
    await once(signal, 'abort');
    ended();
    return {tokens: [1], isAtEnd: false, promptTokens: 1, residentTokens: 0, cachedTokens: 0, promptMs: 0, predictedMs: 0};
  };
  const url = await served(t, engine);
  const request = http.request(`${url}/completion`, {method: 'POST'});
  request.on('error', () => {});
  request.end(JSON.stringify({prompt: 'a', stream: true}));
  const [response] = await once(request, 'response');
  await once(response, 'data');
  request.destroy();
  await isOver;
});

test('a full engine refuses a request before it has a body, and one whose body came too late before its text is looked at', async (t) => {
  const engine = new Counter();
  const url = await served(t, engine);
  engine.checkRoom = () => { throw new Refused(503, '64 completions wait already'); };
  const request = http.request(`${url}/completion`, {method: 'POST', headers: {'content-length': 4 << 20}});
  request.on('error', () => {});
  request.flushHeaders(); // no byte of the body
  const [response] = await once(request, 'response');
  assert.equal(response.statusCode, 503);
  request.destroy();
  let looks = 0;
  engine.checkRoom = () => {
    looks += 1;
    if (looks > 1) throw new Refused(503, 'the server is ending');
  };
  engine.tokensOf = () => assert.fail('a closed engine has no tokens');
  assert.equal((await post(url, '/completion', {prompt: 'a'})).status, 503);
  assert.equal(looks, 2);
});

test('connections have a bound', () => {
  assert.equal(completionServer(new Counter(), 'model.gguf').maxConnections, 256);
});

test('a client that goes with the end of its body is noticed', async () => {
  const engine = new Counter();
  const asked = new Promise((resolve) => {
    engine.complete = async ({signal}) => {
      resolve(signal.aborted);
      throw signal.reason ?? new Error('nobody went');
    };
  });
  const response = Object.assign(new EventEmitter(), {headersSent: false, writeHead() {}, end() {}});
  async function* body() {
    yield Buffer.from(JSON.stringify({prompt: 'a'}));
    response.emit('close');
  }
  completionServer(engine, 'model.gguf').emit('request', Object.assign(body(), {method: 'POST', url: '/completion'}), response);
  assert.equal(await asked, true);
});
