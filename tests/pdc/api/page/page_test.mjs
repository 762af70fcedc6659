// What must hold: the page asks for the same answer with the cache and without, reads streams that are cut anywhere, shows figures
// and words as text, and its policy is that of its script.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../../../', import.meta.url));
const file = join(root, 'pdc/api/page/page.html');
const html = readFileSync(file, 'utf8');
const inner = element => new RegExp(`<${element}>(.*?)</${element}>`, 's').exec(html)[1];

// What the script needs of a document. Markup is not among it: using it fails.
class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, listeners: {}, value: '' }); }
  append(...children) { for (const child of children) assert.ok(child !== undefined, this.tag); this.children.push(...children); }
  prepend(...children) { this.children.unshift(...children); }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map(child => typeof child === 'string' ? child : child.textContent).join(''); }
  set innerHTML(_) { throw new Error('markup'); }
}

// A stream in pieces of seven bytes.
const replyOf = events => ({ ok: true, body: new ReadableStream({
  start(controller) {
    const bytes = new TextEncoder().encode(events.map(one => `data: ${typeof one === 'string' ? one : JSON.stringify(one)}\n\n`).join(''));
    for (let at = 0; at < bytes.length; at += 7) controller.enqueue(bytes.slice(at, at + 7));
    controller.close();
  } }) });
const words = (text, cached) => [{ choices: [{ text: text.slice(0, 5) }] }, { choices: [{ text: text.slice(5) }] },
  { choices: [], usage: { prompt_tokens: 300, completion_tokens: 9, prompt_tokens_details: { cached_tokens: cached } } }, '[DONE]'];

async function load(answers = []) {
  const ids = new Map([...html.matchAll(/ id="([\w-]+)"/g)].map(([, id]) => [id, new Element('#' + id)]));
  const document = { createElement: tag => new Element(tag), getElementById: id => { assert.ok(ids.has(id), id); return ids.get(id); } };
  const asked = [];
  const fetch = async (path, request) => {
    if (path === '/v1/models') return { json: async () => ({ data: [{ id: 'ems-demo', max_model_len: 2048 }] }) };
    asked.push({ path, ...JSON.parse(request.body) });
    return answers.shift();
  };
  const names = ['requestOf', 'eventsOf', 'take', 'verdictOf', 'turn', 'submit'];
  const page = new Function('document', 'fetch', `${inner('script')}\nreturn { ${names.join(', ')} };`)(document, fetch);
  await new Promise(setImmediate);
  for (const [id, value] of [['mode', 'text'], ['tokens', '9'], ['temperature', '0.5']]) ids.get(id).value = value;
  return { ...page, ids, asked, text: id => ids.get(id).textContent };
}

test('both sides are asked for the same, one of them with a salt of its own', async () => {
  const { submit, asked, ids, text } = await load([replyOf(words('mañana is here', 0)), replyOf(words('mañana is here', 256))]);
  ids.get('prompt').value = 'Once upon a time';
  await submit();
  const [without, cached] = asked;
  assert.equal(text('model'), 'ems-demo, 2,048 tokens');
  assert.match(without.cache_salt, /^page-/);
  assert.equal(cached.cache_salt, undefined);
  assert.deepEqual({ ...without, cache_salt: undefined }, { ...cached, cache_salt: undefined });
  assert.equal(cached.prompt, 'Once upon a time');
  assert.equal(cached.max_tokens, 9);
  assert.match(text('turns'), /Without the cache.*0 of 300 tokens.*mañana is here.*With the cache.*256 of 300 tokens.*mañana is here/s);
  assert.match(text('turns'), /The same answer\. 256 of 300 tokens were not computed: the first token came after/);
  assert.equal(ids.get('ask').disabled, false);
});

test('salts do not come twice', async () => {
  const { requestOf } = await load();
  const settings = { mode: 'text' }, messages = [{ role: 'user', content: 'x' }];
  assert.notEqual(requestOf(settings, messages, false).body.cache_salt, requestOf(settings, messages, false).body.cache_salt);
});

test('a conversation goes on with what was said', async () => {
  const chat = text => replyOf([{ choices: [{ delta: { role: 'assistant', content: '' } }] }, { choices: [{ delta: { content: text } }] }, '[DONE]']);
  const { submit, asked, ids } = await load(['a', 'a', 'b', 'b'].map(chat));
  ids.get('mode').value = 'chat';
  for (const prompt of ['one', 'two']) {
    ids.get('prompt').value = prompt;
    await submit();
  }
  assert.equal(asked[3].path, '/v1/chat/completions');
  assert.deepEqual(asked[3].messages.map(one => one.content), ['one', 'a', 'two']);
  ids.get('fresh').listeners.click();
  assert.equal(ids.get('turns').textContent, '');
});

test('failures are said, before an answer and within one', async () => {
  const refused = { ok: false, status: 400, json: async () => ({ error: { message: 'the prompt has <b>9</b> tokens' } }) };
  const { submit, ids, text } = await load([refused, replyOf([{ choices: [{ text: 'a' }] }, { error: { message: 'no worker' } }])]);
  for (const message of ['the prompt has <b>9</b> tokens', 'no worker']) {
    await submit();
    assert.equal(text('trouble'), message);
    assert.equal(ids.get('trouble').hidden, false);
    assert.equal(ids.get('ask').disabled, false);
  }
});

test('answers that differ are said to', async () => {
  const { verdictOf } = await load();
  assert.match(verdictOf({ text: 'a' }, { text: 'b', cached: 0 }), /^Answers differ\. Nothing of the prompt was stored/);
});

test('the policy lets this script and this style run, and nothing of elsewhere', () => {
  const folder = mkdtempSync(join(tmpdir(), 'page-'));
  try {
    execFileSync('/usr/bin/python3', ['-B', join(root, 'cmake/embed_page.py'), file, 'pdc/api/page/page_html.h', 'ems::pdc::api', join(folder, 'page.cc')]);
    const source = readFileSync(join(folder, 'page.cc'), 'utf8');
    for (const element of ['script', 'style'])
      assert.ok(source.includes(`${element}-src 'sha256-${createHash('sha256').update(inner(element)).digest('base64')}'`), element);
    assert.ok(source.includes(html));
  } finally {
    rmSync(folder, { recursive: true });
  }
  assert.doesNotMatch(html, /https?:\/\/|\sstyle="|\son\w+="|javascript:/);
  assert.doesNotMatch(inner('script'), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|DOMParser/);
});
