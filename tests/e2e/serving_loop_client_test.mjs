// The official openai client against the serving loop: node tests/e2e/serving_loop_client_test.mjs http://HOST:PORT MODEL
// tests/e2e/serving_loop_test.py starts ems-pdc and a pool, and runs this.
import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';

const [origin, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${origin}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 30_000 });
const user = (content) => ({ role: 'user', content });
const assistant = (content) => ({ role: 'assistant', content });
const long = 'You keep a lighthouse, and you have seen much of the sea in all those years. '.repeat(4);

// Of all workers.
async function metric(name) {
  const text = await (await fetch(`${origin}/metrics`)).text();
  const lines = text.split('\n').filter((one) => one.startsWith(`ems_pdc_${name}{`) || one.startsWith(`ems_pdc_${name} `));
  assert.notEqual(lines.length, 0, name);
  return lines.reduce((sum, one) => sum + Number(one.split(' ').at(-1)), 0);
}

async function until(condition, what) {
  const end = Date.now() + 15_000;
  while (!(await condition())) assert.ok(Date.now() < end, `no ${what} after 15 s`);
}

async function collect(stream) {
  const found = { text: '', parts: 0 };
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    found.usage = chunk.usage ?? found.usage;
    found.reason = choice?.finish_reason ?? found.reason;
    const part = choice?.delta?.content ?? choice?.text;
    if (part) {
      found.text += part;
      found.parts += 1;
    }
  }
  return found;
}

test('lists the model', async () => {
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  assert.deepEqual(models, [model]);
});

test('a stream says what a whole answer does', async () => {
  const asked = { model, prompt: 'Once upon a time', max_tokens: 80, temperature: 0 };
  const whole = await client.completions.create({ ...asked, ignore_eos: true });
  assert.equal(whole.usage.completion_tokens, 80);
  assert.equal(whole.choices[0].finish_reason, 'length');
  const streamed = await collect(
    await client.completions.create({ ...asked, ignore_eos: true, stream: true, stream_options: { include_usage: true } }),
  );
  assert.equal(streamed.text, whole.choices[0].text);
  assert.equal(streamed.usage.completion_tokens, 80);
  assert.ok(streamed.parts > 20, `${streamed.parts} parts`);
});

test('a seed fixes what is drawn, and no seed does not', async () => {
  const ask = async (fields) =>
    (await client.completions.create({ model, prompt: 'Draw', max_tokens: 40, ignore_eos: true, ...fields })).choices[0].text;
  assert.equal(await ask({ seed: 4 }), await ask({ seed: 4 }));
  assert.notEqual(await ask({ seed: 4 }), await ask({ seed: 5 }));
  assert.notEqual(await ask({}), await ask({}));
});

test('the second turn of a conversation is cached', async () => {
  const ask = (messages) => client.chat.completions.create({ model, messages, max_tokens: 24, temperature: 0 });
  const saved = await metric('saved_blocks_total');
  const first = await ask([user(long)]);
  assert.equal(first.usage.prompt_tokens_details.cached_tokens, 0);
  await until(async () => (await metric('saved_blocks_total')) >= saved + Math.floor(first.usage.prompt_tokens / 32), 'saved blocks');
  const second = await ask([user(long), assistant(first.choices[0].message.content), user('And then?')]);
  const cached = second.usage.prompt_tokens_details.cached_tokens;
  assert.ok(cached >= 32 * Math.floor((first.usage.prompt_tokens - 16) / 32), `${cached} of ${second.usage.prompt_tokens}`);
  assert.ok(cached < second.usage.prompt_tokens);
  const again = await ask([user(long)]);
  assert.equal(again.choices[0].message.content, first.choices[0].message.content);
  assert.ok(again.usage.prompt_tokens_details.cached_tokens > 0);
});

test('salts do not share what is cached', async () => {
  const ask = async (salt) => {
    const asked = { model, prompt: `salted ${long}`, max_tokens: 1, cache_salt: salt };
    return (await client.completions.create(asked)).usage.prompt_tokens_details.cached_tokens;
  };
  assert.equal(await ask('one'), 0);
  await until(async () => (await ask('one')) > 0, 'cached tokens');
  assert.equal(await ask('two'), 0);
});

test('closing a stream stops the work', async () => {
  const cancelled = await metric('decode_cancelled_total');
  const tokens = await metric('decode_tokens_total');
  const stream = await client.completions.create({ model, prompt: 'Go on', max_tokens: 4000, ignore_eos: true, stream: true });
  let text = '';
  for await (const chunk of stream) {
    text += chunk.choices[0].text;
    if (text.length > 10) stream.controller.abort();
  }
  await until(async () => (await metric('decode_cancelled_total')) === cancelled + 1, 'cancelled request');
  await until(async () => (await metric('decode_admitted')) === 0, 'free worker');
  assert.ok((await metric('decode_tokens_total')) < tokens + 4000, 'it went on to the end');
});

test('bad requests say what is wrong', async () => {
  const create = (fields) => client.completions.create({ model, prompt: 'x', max_tokens: 1, ...fields });
  await assert.rejects(create({ model: 'gpt' }), { status: 404, code: 'model_not_found' });
  await assert.rejects(create({ prompt: 'x'.repeat(20_000) }), { status: 400, code: 'context_length_exceeded' });
  await assert.rejects(create({ prompt: [1, 1_000_000] }), { status: 400 });
  await assert.rejects(create({ temperature: 3 }), { status: 400, param: 'temperature' });
  await assert.rejects(create({ n: 2 }), { status: 400, param: 'n' });
  await assert.rejects(create({ max_tokens: 0 }), { status: 400, param: 'max_tokens' });
});

test('a deadline ends an answer', async () => {
  const late = client.completions.create(
    { model, prompt: 'Late', max_tokens: 7000, ignore_eos: true },
    { headers: { 'X-Request-Timeout-Ms': '100' } },
  );
  await assert.rejects(late, { status: 504, code: 'deadline_exceeded' });
});

test('many at a time, each its own answer', async () => {
  const ask = (i, stream) => client.completions.create({ model, prompt: `number ${i}`, max_tokens: 30, seed: i, ignore_eos: true, stream });
  const asked = Array.from({ length: 24 }, (_, i) => i);
  const together = await Promise.all(asked.map(async (i) => (await collect(await ask(i, true))).text));
  for (const i of asked.filter((one) => one % 6 === 0)) assert.equal(together[i], (await ask(i, false)).choices[0].text);
  assert.equal(new Set(together).size, asked.length);
});
