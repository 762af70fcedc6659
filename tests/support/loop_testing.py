"""What the tests of the serving loop in scripts share: processes of ems-pdc in a folder of their own, a client that
streams with a deadline, a load that checks every answer, metrics.

Nothing here sleeps to be in time: a test waits for a condition. Bound: every wait has a deadline and says what it has
waited for."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from model_testing import BIN, MiB, free_port, wait_until  # noqa: E402,F401

NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Pdc:
    """One process of ems-pdc; started again on the addresses that it had."""

    def __init__(self, folder, name, **options):
        self.folder, self.name, self.options = folder, name, options
        self.process, self.ready = None, {}
        self.log_path = os.path.join(folder, name + '.log')
        if options.get('role') in ('prefill', 'decode'):
            self.options['listen'] = f'127.0.0.1:{free_port()}'
        if options.get('role') == 'prefill':
            self.options['unix_path'] = os.path.join(folder, name + '.sock')
        self.options['http_listen'] = f'127.0.0.1:{free_port()}'

    @property
    def address(self):
        return self.options['listen']

    @property
    def http(self):
        return self.options['http_listen']

    @property
    def pid(self):
        return self.process.pid

    def start(self, wait=True):
        ready = os.path.join(self.folder, self.name + '.ready')
        with contextlib.suppress(FileNotFoundError):
            os.remove(ready)
        command = ['setpriv', '--pdeathsig', 'KILL', os.path.join(BIN, 'ems-pdc'), '--ready-file', ready]
        for key, value in {'name': self.name, **self.options}.items():
            command += ['--set', f'{key}={value}']
        with open(self.log_path, 'ab') as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            wait_until(lambda: self.alive() and os.path.exists(ready), f'{self.name} that listens')
        return self

    def alive(self):
        assert self.process.poll() is None, f'{self.name} ended with {self.process.returncode}:\n{self.log()[-3000:]}'
        return True

    def log(self):
        with open(self.log_path, encoding='utf-8', errors='replace') as file:
            return file.read()

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        if how == signal.SIGKILL:
            self.process.wait()

    def end(self):
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)  # not to one that has been waited for: Popen sees to that
        self.process.kill()
        self.process.wait()

    def stop(self, seconds=20):
        """As an operator would; it ends in order."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=seconds)
        assert code == 0, f'{self.name} ended with {code}:\n{self.log()[-3000:]}'

    def get(self, path):
        """(status, body)"""
        try:
            with NO_PROXY.open(f'http://{self.http}{path}', timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_ready(self):
        with contextlib.suppress(OSError):
            return self.get('/readyz')[0] == 200
        return False

    def wait_ready(self, seconds=20):
        wait_until(lambda: self.alive() and self.is_ready(), f'{self.name} that is ready', seconds)

    def metrics(self):
        """Values by `name{labels}`, without the prefix ems_pdc_."""
        found = {}
        for line in self.get('/metrics')[1].splitlines():
            if line.startswith('ems_pdc_'):
                name, _, value = line.removeprefix('ems_pdc_').rpartition(' ')
                found[name] = float(value)
        return found

    def metric(self, name):
        """The sum over all labels."""
        values = [value for key, value in self.metrics().items() if key == name or key.startswith(name + '{')]
        assert values, f'{self.name} has no metric {name}'
        return sum(values)

    def descriptors(self):
        return len(os.listdir(f'/proc/{self.pid}/fd'))

    def shared_kib(self):
        """What it has of memory that others may have mapped, too: rings, above all."""
        with open(f'/proc/{self.pid}/status', encoding='ascii') as file:
            return int(re.search(r'RssShmem:\s+(\d+) kB', file.read()).group(1))


class Loop:
    """Processes of ems-pdc by name, ended by pid."""

    def __init__(self, **common):
        self.folder = tempfile.mkdtemp(prefix='ems-loop-')
        self.common, self.parts = common, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for part in self.parts.values():
            part.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, name, **options):
        """Not started yet."""
        self.parts[name] = Pdc(self.folder, name, **{**self.common, **options})
        return self.parts[name]

    def __getitem__(self, name):
        return self.parts[name]


class Answer:
    """What came of one request. `error`: the object of OpenAI's shape, or None; `text`: what came before it."""

    def __init__(self):
        self.status, self.text, self.error, self.usage, self.reason = None, '', None, None, None
        self.whole = False  # ended with [DONE]
        self.broken = None  # how the connection itself failed
        self.seconds = 0.0

    def __repr__(self):
        return (f'status {self.status} after {self.seconds:.2f} s, {len(self.text)} characters, whole {self.whole}, '
                f'error {self.error}, broken {self.broken!r}')


class TooLate(Exception):
    pass


class Client:
    """Streams completions. A request that has not ended after `seconds` has hung."""

    def __init__(self, address, model, seconds=30.0):
        self.host, self.port = address.rsplit(':', 1)
        self.model, self.seconds = model, seconds

    def ask(self, on_text=None, timeout_ms=None, path='/v1/completions', **fields):
        """One request, stream or not by `fields`. `on_text(text so far)`: true stops, and closes the connection."""
        answer, begin = Answer(), time.monotonic()
        connection = http.client.HTTPConnection(self.host, int(self.port), timeout=self.seconds)
        headers = {'Content-Type': 'application/json'}
        if timeout_ms:
            headers['X-Request-Timeout-Ms'] = str(timeout_ms)
        try:
            connection.request('POST', path, json.dumps({'model': self.model, **fields}), headers)
            reply = connection.getresponse()
            answer.status = reply.status
            if reply.getheader('Content-Type', '').startswith('text/event-stream'):
                self._read_events(reply, answer, begin + self.seconds, on_text)
            else:
                self._read_whole(json.loads(reply.read()), answer)
        except TimeoutError:
            raise TooLate(f'no end after {self.seconds} s: {fields.get("prompt", "")[:20]!r} {answer}') from None
        except (OSError, http.client.HTTPException) as error:
            answer.broken = error
        finally:
            connection.close()
        answer.seconds = time.monotonic() - begin
        return answer

    @staticmethod
    def _read_whole(body, answer):
        answer.error = body.get('error')
        if answer.error is None:
            choice = body['choices'][0]
            answer.text = choice['text'] if 'text' in choice else choice['message']['content']
            answer.reason, answer.usage, answer.whole = choice['finish_reason'], body['usage'], True

    @staticmethod
    def _read_events(reply, answer, end, on_text):
        for line in reply:
            if time.monotonic() > end:
                raise TimeoutError
            line = line.decode().strip()
            if not line.startswith('data: '):
                continue
            if line == 'data: [DONE]':
                answer.whole = True
                continue
            event = json.loads(line.removeprefix('data: '))
            if 'error' in event:
                answer.error = event['error']
                continue
            answer.usage = event.get('usage') or answer.usage
            for choice in event['choices']:
                answer.text += choice.get('text') or choice.get('delta', {}).get('content') or ''
                answer.reason = choice['finish_reason'] or answer.reason
            if on_text and on_text(answer.text):
                return


class Load:
    """Clients that stream the prompts of `wanted` ({name: fields}) again and again, and compare with `reference`
    ({name: text}). What is wrong is in `faults`; it goes on."""

    def __init__(self, client, wanted, reference, clients=8, pause=0.02):
        self.client, self.reference = client, reference
        self._wanted, self._pause = list(wanted.items()), pause
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.faults, self.errors, self.finished, self.slowest, self.begun = [], [], 0, 0.0, 0
        self._running = 0
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """No more requests; those in hand end."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _run(self, number):
        turn = number
        while not self._stop.is_set():
            name, fields = self._wanted[turn % len(self._wanted)]
            turn += 1
            self._one(name, fields)
            self._stop.wait(self._pause)

    def _one(self, name, fields):
        try:
            with self._lock:
                self.begun += 1
            answer = self.client.ask(stream=True, **fields)
        except Exception as error:  # pylint: disable=broad-except
            with self._lock:
                self.faults.append(f'{name}: {error!r}')
            return
        with self._lock:
            self.slowest = max(self.slowest, answer.seconds)
            self._judge(name, answer)

    def _judge(self, name, answer):
        wanted = self.reference[name]
        if answer.whole:
            if answer.text == wanted:
                self.finished += 1
            else:
                same = os.path.commonprefix([answer.text, wanted])
                self.faults.append(f'{name}: another answer from character {len(same)} of {len(wanted)} on: '
                                   f'{answer.text[len(same):][:40]!r} instead of {wanted[len(same):][:40]!r}')
        elif not wanted.startswith(answer.text):
            self.faults.append(f'{name}: what came is no beginning of the answer: {answer} {answer.text[-40:]!r}')
        elif not is_clear(answer.error):
            self.faults.append(f'{name}: ended without a clear error: {answer}')
        else:
            self.errors.append(answer)

    def wait_for(self, count, seconds=20.0):
        """Until `count` more answers are whole."""
        wanted = self.finished + count
        wait_until(lambda: self.finished >= wanted or self.faults, f'{count} more answers; errors: {self.errors[-3:]}',
                   seconds)


def is_clear(error):
    """Whether it is an error as OpenAI's clients know them, with something to read."""
    return (isinstance(error, dict) and bool(error.get('message')) and isinstance(error.get('type'), str) and
            {'message', 'type', 'param', 'code'} <= error.keys())


def hung_up(host, port):
    """Whether nobody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return False
    return True
