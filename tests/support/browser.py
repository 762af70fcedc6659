"""A headless Chromium that tests in scripts drive by its DevTools pipe, without a further package.

Nothing here sleeps to be in time. Bound: every wait has a deadline and says what it has waited for. The browser ends with its
`with`, and its processes with it.
"""
import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

PROGRAM = os.environ.get('EMS_CHROMIUM') or shutil.which('chromium')
SECONDS_MAX = 20.0
# No sandbox: it would need name spaces of its own, and what is opened here is pages of this repository alone.
FLAGS = ('--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--no-proxy-server', '--mute-audio',
         '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-extensions', '--hide-scrollbars')
PIPE_FD_MIN = 10  # the browser has its pipe at 3 and 4: what is copied there must not lie there


class Browser:
    """One process; `page` opens a tab in a profile of its own, without what other tabs have stored."""

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix='ems-browser-')
        ours, theirs = [], []
        for mine in (1, 0):
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, PIPE_FD_MIN) for end in self._pipe()]
            ours.append(ends[mine])
            theirs.append(ends[1 - mine])
        command = f'exec 3<&{theirs[0]} 4>&{theirs[1]}; exec setpriv --pdeathsig KILL "$@"'
        with open(os.path.join(self._folder, 'log'), 'wb') as log:
            self._process = subprocess.Popen(
                ['bash', '-c', command, 'bash', PROGRAM, *FLAGS, '--remote-debugging-pipe', f'--user-data-dir={self._folder}/profile', 'about:blank'],
                pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        for end in theirs:
            os.close(end)
        self._in, self._out = ours[0], os.fdopen(ours[1], 'rb')
        self._changed = threading.Condition()
        self._answers, self._pages, self._last, self._ended = {}, {}, 0, False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @staticmethod
    def _pipe():
        first = os.pipe()
        try:
            yield from first
        finally:
            for end in first:
                os.close(end)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a session of its own: what it has started, too
        self._process.wait()
        os.close(self._in)
        self._reader.join()
        self._out.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self):
        with open(os.path.join(self._folder, 'log'), encoding='utf-8', errors='replace') as file:
            return file.read()[-2000:]

    def _read(self):
        text = b''
        while part := self._out.read1(1 << 16):
            *whole, text = (text + part).split(b'\0')
            for one in whole:
                self._take(json.loads(one))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, message):
        with self._changed:
            if 'id' in message:
                self._answers[message['id']] = message
            elif message.get('sessionId') in self._pages:
                self._pages[message['sessionId']].take(message['method'], message['params'])
            self._changed.notify_all()

    def send(self, method, session=None, **params):
        """The number of a command, whose answer nobody need wait for."""
        with self._changed:
            self._last += 1
            number = self._last
            message = {'id': number, 'method': method, 'params': params, **({'sessionId': session} if session else {})}
            data = json.dumps(message).encode() + b'\0'
            while data:
                data = data[os.write(self._in, data):]
        return number

    def ask(self, method, session=None, **params):
        number = self.send(method, session, **params)
        with self._changed:
            done = self._changed.wait_for(lambda: number in self._answers or self._ended, SECONDS_MAX)
            if not done or number not in self._answers:
                raise AssertionError(f'the browser does not answer {method}:\n{self.log()}')
            answer = self._answers.pop(number)
        if 'error' in answer:
            raise AssertionError(f'{method}: {answer["error"]}')
        return answer['result']

    def page(self, url, credentials=None):
        """A tab that has loaded `url`. `credentials` (user, password): what its user types where a site asks for them; None: cancels."""
        context = self.ask('Target.createBrowserContext')['browserContextId']
        target = self.ask('Target.createTarget', url='about:blank', browserContextId=context)['targetId']
        session = self.ask('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        page = Page(self, session, credentials)
        with self._changed:
            self._pages[session] = page
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.ask(domain + '.enable', session)
        self.ask('Fetch.enable', session, handleAuthRequests=True)
        page.load(url)
        return page


class Page:
    """`faults`: what the console shows of errors and warnings, exceptions, and loads that failed; `requests`: URLs, in their order;
    `statuses`: what they were answered with."""

    def __init__(self, browser, session, credentials):
        self._browser, self._session, self._credentials = browser, session, credentials
        self.faults, self.requests, self.statuses, self._asked_twice = [], [], {}, set()

    # In the reader's thread.
    def take(self, method, params):
        if method == 'Runtime.exceptionThrown':
            details = params['exceptionDetails']
            self.faults.append(details.get('exception', {}).get('description', details['text']))
        elif method == 'Runtime.consoleAPICalled' and params['type'] in ('error', 'warning', 'assert'):
            self.faults.append(f'console.{params["type"]}: {params["args"]}')
        elif method == 'Log.entryAdded' and params['entry']['level'] in ('error', 'warning'):
            self.faults.append(f'{params["entry"]["text"]} {params["entry"].get("url", "")}')
        elif method == 'Network.requestWillBeSent':
            self.requests.append(params['request']['url'])
        elif method == 'Network.responseReceived':
            self.statuses[params['response']['url']] = params['response']['status']
        elif method == 'Fetch.requestPaused':
            self._browser.send('Fetch.continueRequest', self._session, requestId=params['requestId'])
        elif method == 'Fetch.authRequired':
            self._log_in(params['requestId'])

    def _log_in(self, request):
        # Asked again for the same request: they were wrong.
        if self._credentials is None or request in self._asked_twice:
            answer = {'response': 'CancelAuth'}
        else:
            self._asked_twice.add(request)
            answer = {'response': 'ProvideCredentials', 'username': self._credentials[0], 'password': self._credentials[1]}
        self._browser.send('Fetch.continueWithAuth', self._session, requestId=request, authChallengeResponse=answer)

    def load(self, url):
        self._browser.ask('Page.navigate', self._session, url=url)
        self.wait('document.readyState === "complete" && location.href !== "about:blank"', url)

    def ask(self, expression):
        """The value of a JavaScript expression, which may be a promise."""
        answer = self._browser.ask('Runtime.evaluate', self._session, expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in answer:
            raise AssertionError(f'{expression}: {answer["exceptionDetails"]}')
        return answer['result'].get('value')

    def wait(self, expression, what, seconds=SECONDS_MAX):
        """Until the expression is true; its value."""
        end = time.monotonic() + seconds
        pause = threading.Event()
        while True:
            found = self.ask(expression)
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f'after {seconds} s not: {what}; the page says\n{self.text()[:3000]}\n{self.faults}')
            pause.wait(0.05)

    def text(self, selector='body'):
        return self.ask(f'document.querySelector({json.dumps(selector)})?.innerText ?? ""')

    def rows(self, table):
        """Texts of the cells of a table's body."""
        return self.ask(f'[...document.querySelectorAll("#{table} tbody tr")].map(row => [...row.children].map(cell => cell.innerText))')

    def click(self, selector):
        """As a finger would: what lies over it is hit instead."""
        x, y = self.ask(f'''(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{ block: "center" }});
          const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()''')
        for kind in ('mousePressed', 'mouseReleased'):
            self._browser.ask('Input.dispatchMouseEvent', self._session, type=kind, x=x, y=y, button='left', clickCount=1)

    def prefer(self, scheme):
        """light or dark"""
        self._browser.ask('Emulation.setEmulatedMedia', self._session, features=[{'name': 'prefers-color-scheme', 'value': scheme}])

    def resize(self, width, height, mobile=False):
        self._browser.ask('Emulation.setDeviceMetricsOverride', self._session, width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def picture(self, path):
        data = self._browser.ask('Page.captureScreenshot', self._session, format='png')['data']
        with open(path, 'wb') as file:
            file.write(base64.b64decode(data))
