// The official openai client against the serving API: node tests/e2e/openai_client_test.mjs http://HOST:PORT
// tests/e2e/serving_api_test.py starts the server (tests/support/serving_api_server.cc says what prompts do) and runs this.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';

const origin = process.argv[2] ?? process.env.EMS_SERVING_API;
const client = new OpenAI({ baseURL: `${origin}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 20_000 });
const model = 'repeat';
const user = (content) => [{ role: 'user', content }];

async function metric(line) {
  const text = await (await fetch(`${origin}/metrics`)).text();
  const found = text.split('\n').find((one) => one.startsWith(`ems_pdc_${line} `));
  return Number(found?.split(' ').at(-1));
}

async function until(condition, what) {
  const end = Date.now() + 15_000;
  while (!(await condition())) assert.ok(Date.now() < end, `no ${what} after 15 s`);
}

const aborts = 'request_success_total{finished_reason="abort",model_name="repeat"}';

test('lists models and retrieves one', async () => {
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  assert.deepEqual(models, [model]);
  assert.equal((await client.models.retrieve(model)).owned_by, 'ems');
  await assert.rejects(client.models.retrieve('nope'), OpenAI.NotFoundError);
});

test('completes a chat', async () => {
  const answer = await client.chat.completions.create({
    model,
    messages: [{ role: 'system', content: 'be brief' }, ...user([{ type: 'text', text: 'grüße 😀' }])],
    temperature: 0,
    seed: 7,
  });
  assert.equal(answer.choices[0].message.content, 'You said: grüße 😀');
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.equal(answer.usage.completion_tokens, Buffer.byteLength('You said: grüße 😀'));
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.equal(answer.usage.prompt_tokens_details.cached_tokens, Math.floor(answer.usage.prompt_tokens / 2));
  assert.match(answer._request_id, /^chatcmpl-[0-9a-f]{32}$/);
  assert.equal(answer._request_id, answer.id);
});

test('completes text and token ids', async () => {
  const text = await client.completions.create({ model, prompt: 'hello', max_tokens: 12 });
  assert.equal(text.choices[0].text, 'You said: he');
  assert.equal(text.choices[0].finish_reason, 'length');
  const tokens = await client.completions.create({ model, prompt: [104, 105], max_tokens: 100 });
  assert.equal(tokens.usage.prompt_tokens, 2);
  const salted = await client.completions.create({ model, prompt: 'hello', cache_salt: 'mine' });
  assert.equal(salted.usage.prompt_tokens_details.cached_tokens, 0);
});

test('streams a chat, whole characters only', async () => {
  const stream = await client.chat.completions.create({
    model,
    messages: user('grüße 😀'),
    stream: true,
    stream_options: { include_usage: true },
  });
  const parts = [];
  let usage;
  let reason;
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    reason = chunk.choices[0]?.finish_reason ?? reason;
    const part = chunk.choices[0]?.delta.content;
    if (part) parts.push(part);
  }
  assert.equal(parts.join(''), 'You said: grüße 😀');
  assert.ok(parts.length > 10, 'one part a character');
  assert.ok(parts.every((part) => !part.includes('\ufffd')));
  assert.equal(reason, 'stop');
  assert.equal(usage.completion_tokens, Buffer.byteLength(parts.join('')));
});

test('the stream helper puts the answer together', async () => {
  const final = await client.chat.completions.stream({ model, messages: user('hi') }).finalChatCompletion();
  assert.equal(final.choices[0].message.content, 'You said: hi');
});

test('streams text, and replaces bytes that are no characters', async () => {
  const stream = await client.completions.create({ model, prompt: 'bytes 61ff62e282', stream: true });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.equal(text, 'a\ufffdb\ufffd');
});

test('stop strings end the text and do not show', async () => {
  for (const stop of ['wor', ['nope', 'wor']]) {
    const answer = await client.chat.completions.create({ model, messages: user('hello world'), stop });
    assert.equal(answer.choices[0].message.content, 'You said: hello ');
    assert.equal(answer.choices[0].finish_reason, 'stop');
  }
  const stream = await client.chat.completions.create({ model, messages: user('a wo wor'), stop: 'wor', stream: true });
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
  assert.equal(text, 'You said: a wo ');
});

test('bad requests say what is wrong', async () => {
  const refused = async (fields, param) => {
    const request = client.chat.completions.create({ model, messages: user('hi'), ...fields });
    const error = await request.then(() => assert.fail('accepted'), (reason) => reason);
    assert.ok(error instanceof OpenAI.BadRequestError, String(error));
    assert.equal(error.param, param);
    assert.match(error.message, new RegExp(param.replace(/[[\].]/g, '.')));
  };
  await refused({ n: 2 }, 'n');
  await refused({ logprobs: true }, 'logprobs');
  await refused({ temperature: 3 }, 'temperature');
  await refused({ max_completion_tokens: 0 }, 'max_completion_tokens');
  await refused({ messages: [] }, 'messages');
  await refused({ messages: [{ role: 'tool', content: 'x', tool_call_id: '1' }] }, 'messages[0].role');
  await refused({ stop: ['1', '2', '3', '4', '5'] }, 'stop');
  await assert.rejects(client.completions.create({ model, prompt: 'x'.repeat(5000) }), {
    status: 400,
    code: 'context_length_exceeded',
  });
});

test('an unknown model, a full queue and a lost worker', async () => {
  const create = (content, fields) => client.chat.completions.create({ model, messages: user(content), ...fields });
  await assert.rejects(create('hi', { model: 'gpt' }), { status: 404, code: 'model_not_found' });
  const full = await create('full').catch((error) => error);
  assert.ok(full instanceof OpenAI.RateLimitError);
  assert.equal(full.headers.get('retry-after'), '1');
  for (const stream of [false, true]) {
    const lost = await create('lost', { stream }).catch((error) => error);
    assert.ok(lost instanceof OpenAI.InternalServerError);
    assert.equal(lost.status, 503);
  }
});

test('a stream that breaks is an error, not an end', async () => {
  const stream = await client.chat.completions.create({ model, messages: user('break abc'), stream: true });
  let text = '';
  await assert.rejects(async () => {
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
  }, OpenAI.APIError);
  assert.equal(text, 'abc');
});

test('cancelling a stream cancels the generation', async () => {
  const before = await metric(aborts);
  const stream = await client.chat.completions.create({ model, messages: user('hold abc'), stream: true });
  let text = '';
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? '';
    if (text === 'abc') stream.controller.abort();
  }
  await until(async () => (await metric(aborts)) === before + 1, 'cancelled generation');
});

test('cancelling and timing out without a stream do, too', async () => {
  const before = await metric(aborts);
  const controller = new AbortController();
  const held = client.completions.create({ model, prompt: 'hold abc' }, { signal: controller.signal });
  const ended = assert.rejects(held, OpenAI.APIUserAbortError);
  await until(async () => (await metric('num_requests_running{model_name="repeat"}')) === 1, 'running generation');
  controller.abort();
  await ended;
  await until(async () => (await metric(aborts)) === before + 1, 'cancelled generation');
  await assert.rejects(client.completions.create({ model, prompt: 'hold abc' }, { timeout: 100 }), OpenAI.APIConnectionTimeoutError);
  await until(async () => (await metric(aborts)) === before + 2, 'cancelled generation');
  const late = client.completions.create({ model, prompt: 'hold abc' }, { headers: { 'X-Request-Timeout-Ms': '50' } });
  await assert.rejects(late, { status: 504, code: 'deadline_exceeded' });
});

test('many requests at a time', async () => {
  const asked = Array.from({ length: 100 }, (_, i) => i);
  const answers = await Promise.all(
    asked.map(async (i) => {
      if (i % 2) return (await client.completions.create({ model, prompt: `#${i}`, max_tokens: 100 })).choices[0].text;
      const stream = await client.completions.create({ model, prompt: `#${i}`, max_tokens: 100, stream: true });
      let text = '';
      for await (const chunk of stream) text += chunk.choices[0].text;
      return text;
    }),
  );
  assert.deepEqual(answers, asked.map((i) => `You said: #${i}`));
});
