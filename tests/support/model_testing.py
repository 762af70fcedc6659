"""What the tests of model caching in scripts share: real daemons, emsctl, files of models, and a proxy that stands
between servers and a source, counts what they read of it and damages it when told to.

Nothing here sleeps to be in time: a test waits for a condition, or holds the source still (Proxy.hold_after) while it
does what it is about. Bound: every wait has a deadline and says what it has waited for."""
import base64
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'model_files', 'source'))
from source_testing import free_port, random_bytes, running, wait_for_port  # noqa: E402

BIN = os.environ.get('EMS_BIN', os.path.join(HERE, '..', '..', 'build', 'release', 'bin'))
NODE_MODULES = os.path.join(HERE, '..', 'node_modules')
S3_SERVER = os.path.join(HERE, '..', 'model_files', 'source', 's3_server.js')
S3_KEYS = {'AWS_ACCESS_KEY_ID': 'S3RVER', 'AWS_SECRET_ACCESS_KEY': 'S3RVER'}  # those that s3rver knows
NO_KEYS = {'AWS_ACCESS_KEY_ID': '', 'AWS_SECRET_ACCESS_KEY': ''}
KiB, MiB = 1 << 10, 1 << 20


def wait_until(condition, what, seconds=20.0):
    end = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f'after {seconds} s: no {what}')
        pause.wait(0.01)


def safetensors(tensors):
    """`tensors`: bytes by name, one after the other."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {'dtype': 'U8', 'shape': [len(data)], 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(',', ':')).encode()
    return struct.pack('<Q', len(text)) + text + b''.join(tensors.values())


def tensors_of(count, bytes_each, seed):
    return {f'layers.{i}.weight': random_bytes(bytes_each, seed * 1000 + i) for i in range(count)}


def write_files(folder, files):
    for path, data in files.items():
        path = os.path.join(folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            file.write(data)


def total(files):
    return sum(map(len, files.values()))


def difference(folder, files):
    """What is wrong with a loaded folder; empty: nothing."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, 'rb') as file:
                found[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
    wanted = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    return sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))


class Answer:
    """What a run of emsctl has said."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f'exit {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}'


class Call:
    """A run of emsctl, under way until wait."""

    def __init__(self, command, env):
        self._begin = time.monotonic()
        self.process = subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', *command], env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait(self, seconds=60.0):
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f'hangs: {self.process.args}, {self.process.communicate()}') from None
        return Answer(self.process.returncode, out, err, time.monotonic() - self._begin)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class Cluster:
    """A controller and some servers in a folder of their own, ended by pid."""

    CONTROLLER = {'lease_ms': 1000, 'heartbeat_ms': 100, 'damping_ms': 0}

    def __init__(self, servers=3, server=None, controller=None):
        self.folder = tempfile.mkdtemp(prefix='ems-test-')
        self.models = os.path.join(self.folder, 'models')
        os.mkdir(self.models)
        self.credentials = os.path.join(self.folder, 'credentials')
        with open(os.open(self.credentials, os.O_CREAT | os.O_WRONLY, 0o600), 'w', encoding='ascii') as file:
            file.write('[right]\naws_access_key_id = S3RVER\naws_secret_access_key = S3RVER\n'
                       '[wrong]\naws_access_key_id = S3RVER\naws_secret_access_key = hunter2\n'
                       '[token]\nbearer_token = t0ken\n')
        self._server = {'dram.bytes': '256MiB', 'models.file_root': self.models,
                        'models.credentials_file': self.credentials, **(server or {})}
        self._controller = {**self.CONTROLLER, **(controller or {})}
        self.processes, self.ready, self.calls = {}, {}, []
        self._count = servers
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _start_all(self):
        self.start('controller')
        for i in range(self._count):
            self.start(f'server-{i}', wait=False)
        for i in range(self._count):
            self.wait_ready(f'server-{i}')
        self.wait_for_servers(self._count)

    def close(self):
        for call in self.calls:
            call.end()  # one that a failed test has left
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)  # not to one that has been waited for: Popen sees to that
            process.kill()
            process.wait()
        self.processes = {}
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def log(self, name):
        with open(os.path.join(self.folder, name + '.log'), encoding='utf-8', errors='replace') as file:
            return file.read()

    def start(self, name, wait=True):
        """Also again, in the same folder: the controller on its old address, a server on a new one."""
        options = {'data_dir': os.path.join(self.folder, name), 'http_listen': '127.0.0.1:0'}
        if name == 'controller':
            options |= {'listen': self.ready.get(name, {}).get('address', '127.0.0.1:0'), **self._controller}
        else:
            options |= {'name': name, 'controller': self.address, 'listen': '127.0.0.1:0',
                        'unix_path': os.path.join(self.folder, name + '.sock'), **self._server}
        ready = os.path.join(self.folder, name + '.ready')
        with contextlib.suppress(FileNotFoundError):
            os.remove(ready)
        program = 'mp-controller' if name == 'controller' else 'mp-server'
        command = ['setpriv', '--pdeathsig', 'KILL', os.path.join(BIN, program), '--ready-file', ready]
        for key, value in options.items():
            command += ['--set', f'{key}={value}']
        with open(os.path.join(self.folder, name + '.log'), 'ab') as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            self.wait_ready(name)

    def wait_ready(self, name):
        ready = os.path.join(self.folder, name + '.ready')

        def look():
            if self.processes[name].poll() is not None:
                raise AssertionError(f'{name} ended:\n{self.log(name)[-2000:]}')
            return os.path.exists(ready) and os.path.getsize(ready) > 0
        wait_until(look, f'{name} that is ready')
        with open(ready, encoding='utf-8') as file:
            self.ready[name] = json.load(file)

    @property
    def address(self):
        return self.ready['controller']['address']

    def kill(self, name, how=signal.SIGKILL):
        self.processes[name].send_signal(how)
        if how == signal.SIGKILL:
            self.processes[name].wait()

    def wait_for_servers(self, count):
        def look():
            answer = self.emsctl('view', 'show', '--json')
            return answer.code == 0 and len(answer.json['nodes']) == count
        wait_until(look, f'view with {count} servers', 30)

    def call(self, *arguments, env=None):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(('AWS_', 'EMS_'))}
        command = [os.path.join(BIN, 'emsctl'), '--controller', self.address, *map(str, arguments)]
        call = Call(command, {**inherited, **(env or {})})
        self.calls.append(call)
        return call

    def emsctl(self, *arguments, env=None, seconds=60.0):
        return self.call(*arguments, env=env).wait(seconds)

    def add(self, name, url, *flags, env=None):
        answer = self.emsctl('model', 'add', name, url, '--json', *flags, env=env)
        assert answer.code == 0, answer
        return answer.json

    def prefetch(self, name, *flags, seconds=60.0):
        answer = self.emsctl('model', 'prefetch', name, '--wait', '--json', *flags, seconds=seconds)
        assert answer.code == 0, answer
        return answer.json

    def load(self, name, files=None, *flags, env=None, seconds=60.0):
        """Loads with --verify and compares every byte."""
        folder = tempfile.mkdtemp(dir=self.folder)
        answer = self.emsctl('model', 'load', name, folder, '--verify', '--json', *flags, env=env, seconds=seconds)
        assert answer.code == 0, answer
        if files is not None:
            assert difference(folder, files) == [], (difference(folder, files), answer)
        shutil.rmtree(folder)
        return answer.json

    def check(self, name):
        answer = self.emsctl('model', 'check', name, '--json')
        return answer.json


class Proxy:
    """HTTP between servers and a source: hands requests on as they are, and counts the bytes of bodies of GETs.

    `fault(path, number)`: asked for each GET, with the number of GETs before it; what it returns is done to the
    answer: None, ('status', N), ('cut', bytes), ('flip', offset) or ('stall',) - half of it, then nothing until close.
    `digests`: answers have a Content-Digest, of what the source has sent.
    """

    def __init__(self, upstream):
        self.upstream = upstream
        self.fault = lambda path, number: None
        self.digests = False
        self.body_bytes = 0
        self.gets = []  # (path, range)
        self._hold_at = None
        self._lock = threading.Condition()
        self._closing = False
        self._connections = set()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'
            wbufsize = 64 * KiB

            def setup(self):
                super().setup()
                self.inner = http.client.HTTPConnection('127.0.0.1', proxy.upstream, timeout=30)
                with proxy._lock:
                    proxy._connections.add(self.connection)

            def finish(self):
                self.inner.close()
                with proxy._lock:
                    proxy._connections.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_GET(self):
                proxy._serve(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that is killed

        self._server = Server(('127.0.0.1', 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={'poll_interval': 0.05})
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self._lock:
            self._closing = True
            self._lock.notify_all()
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def hold_after(self, count):
        """Bodies wait from `count` more bytes on, until let_go."""
        with self._lock:
            self._hold_at = self.body_bytes + count

    def wait_until_held(self, seconds=30.0):
        with self._lock:
            held = self._lock.wait_for(lambda: self._hold_at is not None and self.body_bytes >= self._hold_at, seconds)
            assert held, f'the source has been asked for {self.body_bytes} bytes alone'

    def let_go(self):
        with self._lock:
            self._hold_at = None
            self._lock.notify_all()

    def reset(self):
        with self._lock:
            self.body_bytes = 0
            self.gets = []
            self.fault = lambda path, number: None

    def _wait_for_turn(self, count):
        with self._lock:
            self._lock.wait_for(lambda: self._closing or self._hold_at is None or self.body_bytes < self._hold_at)
            self.body_bytes += count
            self._lock.notify_all()

    def _serve(self, handler):
        path, is_get = handler.path, handler.command == 'GET'
        fault = None
        if is_get:
            with self._lock:
                number = len(self.gets)
                self.gets.append((path, handler.headers.get('Range')))
            fault = self.fault(path, number)
        if fault and fault[0] == 'status':
            handler.send_response(fault[1])
            handler.send_header('Content-Length', '0')
            return handler.end_headers()
        handler.inner.request(handler.command, path, headers=dict(handler.headers.items()))
        answer = handler.inner.getresponse()
        body = answer.read()
        handler.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ('connection', 'transfer-encoding', 'keep-alive', 'content-length'):
                handler.send_header(name, value)
        length = answer.getheader('Content-Length') if not is_get else str(len(body))
        handler.send_header('Content-Length', length or '0')
        if self.digests and is_get:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            handler.send_header('Content-Digest', f'sha-256=:{digest}:')
        handler.end_headers()
        if not is_get:
            return None
        if answer.status >= 300:
            return handler.wfile.write(body)
        if fault and fault[0] == 'flip' and body:
            damaged = bytearray(body)
            damaged[fault[1] % len(body)] ^= 0x10
            body = bytes(damaged)
        if fault and fault[0] in ('cut', 'stall'):
            body = body[:fault[1] if fault[0] == 'cut' else len(body) // 2]
        self._wait_for_turn(len(body))
        handler.wfile.write(body)
        handler.wfile.flush()
        if fault and fault[0] == 'stall':
            with self._lock:
                self._lock.wait_for(lambda: self._closing)
        if fault and fault[0] in ('cut', 'stall'):
            handler.close_connection = True
        return None


def certificate(folder):
    """A certificate for 127.0.0.1, its own authority, and its key: paths of both."""
    paths = os.path.join(folder, 'ca.pem'), os.path.join(folder, 'key.pem')
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
                    '-subj', '/CN=127.0.0.1', '-addext', 'subjectAltName=IP:127.0.0.1', '-out', paths[0], '-keyout', paths[1]],
                   check=True, capture_output=True)
    return paths


@contextlib.contextmanager
def nginx(folder, locations=''):
    """A real nginx on a free port with `folder` as /m/; yields its port. Its access log is folder/../access.log."""
    program = shutil.which('nginx', path=os.environ.get('PATH', '') + ':/usr/sbin')
    if program is None:
        raise AssertionError('nginx is not there; run tests/run.sh --only deps')
    port, base = free_port(), os.path.dirname(folder)
    os.chmod(base, 0o755)
    temporary = ''.join(f'{name}_temp_path {base}/nginx-{name}; '
                        for name in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))
    with open(os.path.join(base, 'nginx.conf'), 'w', encoding='utf-8') as file:
        file.write(f"""
daemon off; master_process off; pid {base}/nginx.pid;
events {{ worker_connections 256; }}
http {{
  log_format bytes '$request_method $status $body_bytes_sent $uri';
  access_log {base}/access.log bytes; default_type application/octet-stream; {temporary}
  server {{
    listen 127.0.0.1:{port};
    location /m/ {{ alias {folder}/; }}
    {locations}
  }}
}}
""")
    with running([program, '-c', f'{base}/nginx.conf', '-e', f'{base}/nginx-error.log']) as process:
        wait_for_port(port, process)
        yield port


def nginx_bytes(folder):
    """Bytes of bodies that nginx has sent for GETs, by its own log."""
    with open(os.path.join(os.path.dirname(folder), 'access.log'), encoding='utf-8') as file:
        lines = [line.split() for line in file]
    return sum(int(line[2]) for line in lines if line[0] == 'GET' and line[1] in ('200', '206'))


@contextlib.contextmanager
def s3(folder):
    """A real object store that checks signatures, with a bucket "models"; yields its port."""
    if not os.path.isdir(NODE_MODULES):
        raise AssertionError('tests/node_modules is not there; run tests/run.sh --only deps')
    # It makes its continuation tokens with DES.
    command = ['node', '--openssl-legacy-provider', S3_SERVER, folder]
    with running(command, stdout=subprocess.PIPE, text=True) as server:
        yield json.loads(server.stdout.readline())['port']


def s3_put(port, key, data):
    """By curl, whose signatures are its own."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        subprocess.run(
            ['curl', '-sSf', '--noproxy', '*', '--aws-sigv4', 'aws:amz:us-east-1:s3', '-u', 'S3RVER:S3RVER',
             '-H', 'x-amz-content-sha256: UNSIGNED-PAYLOAD', '-T', file.name, '-o', os.devnull,
             f'http://127.0.0.1:{port}/models/{key}'], check=True, timeout=30)
