"""For tests and benchmarks of llama.cpp in Python: an engine process (llama_engine.mjs), prompts, and where EMS's library is."""
import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
NODE_MODULES = os.path.join(HERE, '..', 'node_modules')
BIN = os.environ.get('EMS_BIN', os.path.join(HERE, '..', '..', 'build', 'release', 'bin'))
LIBRARY = os.environ.get('EMS_LIBRARY', os.path.join(BIN, '..', 'lib', 'libems.so.0'))
TOKENS_FIRST, TOKENS_END = 300, 1000  # of random_gguf.py: words


def prompt(length, seed=0):
    """Tokens without a visible pattern; equal arguments, equal tokens; a shorter one is a prefix of a longer one."""
    tokens, state = [], 12345 + 7919 * seed
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2 ** 31
        tokens.append(TOKENS_FIRST + state // 65536 % (TOKENS_END - TOKENS_FIRST))
    return tokens


class EngineDied(AssertionError):
    pass


class Engine:
    """A process with the model, for `with`. `cache`: options of PromptCache.open; None: without one. `environment`: more
    variables."""

    def __init__(self, model, cache=None, environment=None, **settings):
        if not os.path.isdir(os.path.join(NODE_MODULES, 'node-llama-cpp')):
            raise AssertionError('tests/node_modules is not there; run tests/run.sh --only deps')
        if cache is not None:
            # What is known of files is not the machine's: models of tests change.
            cache = {'library': os.path.realpath(LIBRARY), 'digestCache': None, **cache}
        settings = {'model': model, 'cache': cache, **settings}
        self._process = subprocess.Popen(['node', os.path.join(HERE, 'llama_engine.mjs'), json.dumps(settings)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         env={**os.environ, **(environment or {})})
        self.ready = None

    def __enter__(self):
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise EngineDied(f'the engine ended with code {self._process.wait()}')
        answer = json.loads(line)
        if 'error' in answer:
            raise AssertionError(answer['error'])
        return answer

    def _ask(self, **command):
        self._process.stdin.write(json.dumps(command) + '\n')
        self._process.stdin.flush()
        return self._answer()

    def run(self, tokens, **how):
        """{'ttftMs', 'tokens', 'cachedTokens', …} of a prompt; how: generate, cache, keep."""
        return self._ask(tokens=tokens, **how)

    def flush(self):
        self._ask(flush=True)

    def stats(self):
        return self._ask(stats=True)

    def held(self):
        """The tokens that its sequence holds."""
        return self._ask(held=True)['tokens']

    def save_state(self, path):
        """The library's own, without the cache; so is load_state."""
        self._ask(saveState=path)

    def load_state(self, path):
        self._ask(loadState=path)

    def kill_at_manifest(self, pid):
        """That process is killed when the next save has stored all parts of a state, and lists them."""
        self._ask(killAtManifest=pid)

    def damage(self, how, tokens):
        """Spoils what the pool has of prefixes of these tokens; how many states that were."""
        return self._ask(damage=how, of=tokens)['states']

    def close(self):
        """Ends it in order; returns its exit code."""
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdout.close()
        return self._process.returncode
