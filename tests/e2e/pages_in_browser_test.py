"""The page of the cluster and the page of the serving loop in a real browser (headless Chromium), over real daemons: numbers are those of
emsctl, news come by themselves, what is down shows, a password is asked for, tokens come and say what the cache had; light, dark,
and as wide as a phone.

Skipped where Chromium is not installed (apt-get install chromium), unless EMS_BROWSER=required. About 20 s.
"""
import json
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
from browser import PROGRAM, Browser  # noqa: E402
from loop_testing import Loop  # noqa: E402
from model_testing import Cluster, wait_until  # noqa: E402

REQUIRED = os.environ.get('EMS_BROWSER') == 'required'
PICTURES = os.environ.get('EMS_PICTURES')  # a folder: pictures of both pages are written there
PHONES = (390, 320)  # CSS pixels across
SERVER = {'dram.bytes': '64MiB', 'ssd.capacity_bytes': '256MiB'}
KEYS, MISSES = 12, 4
PASSWORD = 'correct horse battery'

# Of each text that is seen: its colour, that of what lies behind it, and how far apart they are (WCAG 2, 1.4.3).
FAINT_TEXTS = '''(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = one => { for (; one; one = one.parentElement) { const c = channels(getComputedStyle(one).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll('body *')].filter(one => one.checkVisibility() && !one.disabled &&
      [...one.childNodes].some(child => child.nodeType === 3 && child.data.trim())).map(one => {
    const [a, b] = [light(channels(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    return { text: one.innerText.slice(0, 40), contrast: (a + 0.05) / (b + 0.05) };
  }).filter(({ contrast }) => contrast < 4.5);
})()'''


def bytes_text(n):
    """As the page writes it: 1.5 MiB, 512 B, 128 MiB."""
    units, at = ('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'), 0
    while n >= 1024 and at < len(units) - 1:
        n, at = n / 1024, at + 1
    return f'{round(n) if at == 0 or n >= 100 else format(n, ".1f")} {units[at]}'


def percent(part, whole):
    return f'{100 * part / whole:.1f} %' if whole else '–'


def picture(page, name):
    if PICTURES:
        page.picture(os.path.join(PICTURES, name + '.png'))


def setUpModule():  # pylint: disable=invalid-name
    assert PROGRAM or not REQUIRED, 'EMS_BROWSER=required, and there is no chromium: apt-get install chromium'
    if PROGRAM is not None:
        BrowserTest.browser = unittest.enterModuleContext(Browser())


@unittest.skipIf(PROGRAM is None, 'Chromium is not installed')
class BrowserTest(unittest.TestCase):
    browser = None  # one for all

    def assert_own(self, page, origin):
        """Nothing went wrong in the page, and nothing came from elsewhere."""
        self.assertEqual(page.faults, [])
        self.assertEqual([url for url in page.requests if not url.startswith((origin + '/', 'data:'))], [])

    def assert_fits(self, page, name):
        """Readable in both schemes, and on a phone without scrolling sideways."""
        colours = []
        for scheme in ('light', 'dark'):
            page.prefer(scheme)
            colours.append(page.ask('getComputedStyle(document.body).backgroundColor'))
            self.assertEqual(page.ask(FAINT_TEXTS), [], scheme)
            for width in PHONES:
                page.resize(width, 844, mobile=True)
                self.assertLessEqual(page.ask('document.scrollingElement.scrollWidth'), width)
                self.assertEqual(page.ask('innerWidth'), width)
                picture(page, f'{name}_{scheme}_{width}')
            page.resize(1280, 900)
            self.assertLessEqual(page.ask('document.scrollingElement.scrollWidth'), 1280)
            picture(page, f'{name}_{scheme}')
        self.assertEqual(colours, ['rgb(255, 255, 255)', 'rgb(15, 18, 22)'])


class ClusterPageTest(BrowserTest):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=3, server=SERVER))
        cls.origin = 'http://' + cls.cluster.ready['controller']['http']
        cls.value = os.path.join(cls.cluster.folder, 'value')
        with open(cls.value, 'wb') as file:
            file.write(b'x' * (300 << 10))
        cls.emsctl('namespace', 'create', 'a-namespace-whose-name-is-as-long-as-those-that-people-make-up')
        for i in range(KEYS):
            cls.put(f'key-{i}')
        cls.gets = cls.hits = 0
        for i in range(KEYS + MISSES):
            cls.get(f'key-{i}')

    @classmethod
    def emsctl(cls, *arguments):
        answer = cls.cluster.emsctl('--json', *arguments)
        assert answer.code == 0, answer
        return answer.json

    @classmethod
    def put(cls, key):
        cls.emsctl('put', key, cls.value)

    @classmethod
    def get(cls, key):
        found = cls.cluster.emsctl('get', key, '-').code == 0
        cls.gets += 1
        cls.hits += found
        return found

    def open(self):
        page = self.browser.page(self.origin + '/')
        page.wait('document.getElementById("link").textContent === "live"', 'numbers that come')
        return page

    def tiles(self, page):
        """Texts of the tiles by their title."""
        return {lines[0]: lines[1:] for lines in
                page.ask('[...document.querySelectorAll("#tiles .tile")].map(tile => tile.innerText.split("\\n"))')}

    def test_numbers_are_those_of_emsctl(self):
        page = self.open()

        def expected():
            status = self.emsctl('status')
            used = {kind: (status[f'{kind}_used_bytes'], status[f'{kind}_total_bytes']) for kind in ('dram', 'ssd')}
            view, servers = status['view'], status['servers']
            return {
                'cluster': status['cluster'], 'health': status['health'],
                'View': [f'{view["term"]}.{view["epoch"]}', f'term {view["term"]}, epoch {view["epoch"]}'],
                'Servers': [f'{servers["up"]} up', f'{servers["down"]} down, {servers["left"]} left'],
                'Objects in DRAM': [f'{status["objects"]:,}'],
                'Hit rate': f'{percent(status["hits"], status["gets"])} of {status["gets"]:,} since the servers started',
                **{kind.upper(): [percent(*used[kind]), f'{bytes_text(used[kind][0])} of {bytes_text(used[kind][1])}'] for kind in used},
                'rows': sorted([node['name'], node['state'], node['data_address'], f'{node["slots"]:,}',
                                f'{bytes_text(node["dram_used_bytes"])} of {bytes_text(node["dram_total_bytes"])}',
                                f'{bytes_text(node["ssd_used_bytes"])} of {bytes_text(node["ssd_total_bytes"])}', f'{node["objects"]:,}',
                                f'{node["term"]}.{node["epoch"]}'] for node in self.emsctl('node', 'list')),
            }

        def shown():
            tiles = self.tiles(page)
            wanted = ('View', 'Servers', 'Objects in DRAM', 'DRAM', 'SSD')
            return {'cluster': page.text('#cluster'), 'health': page.text('#health'), 'Hit rate': tiles['Hit rate'][-1],
                    **{title: tiles[title] for title in wanted},
                    'rows': sorted([cell.strip() for i, cell in enumerate(row) if i in (0, 1, 2, 3, 4, 5, 6, 10)] for row in page.rows('servers'))}

        seen = {}
        self.assertEqual(self.gets - self.hits, MISSES)
        counted = f'{percent(self.hits, self.gets)} of {self.gets} since the servers started'

        def same():  # the page and emsctl look at different moments: until no heartbeat comes between them
            seen.update(wanted=expected(), shown=shown())
            return seen['wanted'] == seen['shown'] and seen['shown']['Hit rate'] == counted
        try:
            wait_until(same, 'numbers that agree', 10)
        except AssertionError:
            self.assertEqual(seen['wanted'], seen['shown'])
            self.assertEqual(seen['shown']['Hit rate'], counted)
            raise
        self.assertEqual(seen['shown']['health'], 'OK')
        self.assertEqual(len(seen['shown']['rows']), 3)
        names = [row[0] for row in page.rows('namespaces')]
        self.assertEqual(sorted(names), sorted(one['name'] for one in self.emsctl('namespace', 'list')))
        events = [row[1] for row in page.rows('events')]
        self.assertEqual(events, [one['kind'] for one in self.emsctl('events', '--limit', '20')][::-1])
        self.assert_own(page, self.origin)

    def test_news_come_by_themselves_and_a_pause_holds_them(self):
        page = self.open()
        objects = 'document.querySelector("#tiles div:nth-child(5) .value").textContent'
        page.ask('window.sameDocument = true')
        before = int(page.ask(objects).replace(',', ''))
        self.put('one-more')
        page.wait(f'{objects} === "{before + 1}"', 'one more object')
        self.assertTrue(self.get('one-more'))
        page.wait('/^(0\\.)?[1-9]/.test([...document.querySelectorAll("#tiles .tile")].at(-1).querySelector(".value").textContent) && '
                  'document.querySelector("#gets path").getAttribute("d").includes("L")', 'look-ups, as a number and in the chart')
        page.click('#pause')
        page.wait('document.getElementById("lost").innerText.startsWith("Paused")', 'pause')
        self.put('while-paused')
        wait_until(lambda: self.emsctl('status')['objects'] == before + 2, 'the object in status')
        page.ask('fetch("state").then(answer => answer.text())')  # a state later than that
        self.assertEqual(page.ask(objects), str(before + 1))
        page.click('#pause')
        page.wait(f'{objects} === "{before + 2}"', 'news after the pause')
        self.assertTrue(page.ask('window.sameDocument'))
        self.assertEqual(len([url for url in page.requests if url == self.origin + '/']), 1)
        self.assert_own(page, self.origin)

    def test_light_dark_and_as_wide_as_a_phone(self):
        page = self.open()
        self.assert_fits(page, 'cluster_page')
        page.resize(PHONES[0], 844, mobile=True)
        state = page.ask('(() => { const box = document.querySelector("#servers tbody td").getBoundingClientRect(); return box.right; })()')
        self.assertLess(state, PHONES[0], 'the state of a server is out of sight')
        self.assert_own(page, self.origin)


class TroubleTest(BrowserTest):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=3, server=SERVER, controller={'http_listen': '127.0.0.1:0'}))

    def test_what_is_down_shows_and_comes_back(self):
        address = self.cluster.ready['controller']['http']
        page = self.browser.page(f'http://{address}/')
        page.wait('document.getElementById("health").textContent === "OK"', 'health')
        self.cluster.kill('server-1')
        page.wait('document.getElementById("health").textContent === "DEGRADED"', 'degraded health')
        first = page.rows('servers')[0]
        self.assertEqual(first[:2], ['server-1', 'DOWN'])  # what needs a look comes first
        good, bad = (page.ask(f'getComputedStyle(document.querySelector("#servers .{kind}")).color') for kind in ('good', 'bad'))
        self.assertNotEqual(good, bad)
        self.assertIn('1 down', page.text('#tiles'))
        page.wait('document.getElementById("events").innerText.includes("node_lost")', 'the event')
        self.assertEqual(page.faults, [])

        self.cluster.kill('controller')
        page.wait('!document.getElementById("lost").hidden && document.body.classList.contains("old")', 'word that the numbers are old')
        self.assertIn('Nothing heard', page.text('#lost'))
        self.cluster._controller['http_listen'] = address  # pylint: disable=protected-access
        self.cluster.start('controller')
        page.wait('document.getElementById("lost").hidden && document.getElementById("link").textContent === "live"', 'the page, live again')


class PasswordTest(BrowserTest):
    def test_who_has_no_password_sees_nothing(self):
        with tempfile.NamedTemporaryFile('w', encoding='utf-8') as file:
            file.write(PASSWORD + '\n')
            file.flush()
            with Cluster(servers=1, server=SERVER, controller={'page_password_file': file.name}) as cluster:
                self.look(cluster, f'http://{cluster.ready["controller"]["http"]}')

    def look(self, cluster, origin):
        name = cluster.emsctl('status', '--json').json['cluster']
        for credentials in (None, ('ems', 'wrong horse battery'), ('root', PASSWORD)):
            page = self.browser.page(origin + '/', credentials)
            self.assertEqual(page.statuses[origin + '/'], 401, credentials)
            self.assertNotIn(name, page.text())
            self.assertNotIn('EMS cluster', page.text())
            self.assertEqual(page.ask('fetch("state").then(answer => answer.status)'), 401)
            self.assertEqual(page.ask('new Promise(done => { const source = new EventSource("events"); source.onerror = () => done("refused"); '
                                      'source.onmessage = () => done("told"); })'), 'refused')
        page = self.browser.page(origin + '/', ('ems', PASSWORD))
        page.wait('document.getElementById("link").textContent === "live"', 'numbers behind the password')
        self.assertEqual(page.text('#cluster'), name)
        self.assertEqual(page.ask('fetch("state").then(answer => answer.status)'), 200)
        self.assertEqual([fault for fault in page.faults if '401' not in fault], [])


class ChatPageTest(BrowserTest):
    PROMPT = 'A cache keeps what has been computed, so that it need not be computed a second time. The system reads the file.'
    FIGURES = '''[...document.querySelectorAll("article")].map(turn => ({ verdict: turn.lastElementChild.innerText, sides: [...turn.querySelectorAll(".side")]
      .map(side => ({ words: side.querySelector(".words").innerText, figures: Object.fromEntries([...side.querySelectorAll("dt")]
      .map(dt => [dt.innerText, dt.nextElementSibling.innerText])) })) }))'''

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(servers=1, server={'dram.bytes': '64MiB'}))
        cls.loop = cls.enterClassContext(Loop(**{'role': 'all', 'model.preset': 'tiny', 'kv.bytes': '64MiB', 'kv.block_tokens': 16}))
        cls.pdc = cls.loop.add('whole', **{'pool.controller': cls.cluster.address}).start()
        cls.pdc.wait_ready()
        wait_until(lambda: cls.pdc.metric('pool_connected') == 1, 'connection to the pool')
        cls.origin = 'http://' + cls.pdc.http

    def ask(self, page):
        """Clicks Ask; the turn once both answers are whole."""
        turns = page.ask('document.querySelectorAll("article").length')
        page.click('#ask')
        page.wait(f'document.querySelectorAll("article").length === {turns + 1} && !document.getElementById("ask").disabled', 'answers')
        return page.ask(self.FIGURES)[0]

    def test_tokens_come_and_say_what_the_cache_had(self):
        page = self.browser.page(self.origin + '/')
        page.wait('document.getElementById("model").innerText.includes("tokens")', 'the model')
        for name, value in (('prompt', self.PROMPT), ('tokens', '24'), ('temperature', '0')):
            page.ask(f'document.getElementById("{name}").value = {json.dumps(value)}')
        page.ask('''(window.seen = [], new MutationObserver(() => window.seen.push(document.querySelector(".words:not(.asked)")?.textContent.length))
          .observe(document.getElementById("turns"), { childList: true, subtree: true, characterData: true }), 0)''')
        first = self.ask(page)
        self.assertGreater(len(set(page.ask('window.seen'))), 3, 'the words come as they are computed, not at once')
        wait_until(lambda: self.cluster.emsctl('status', '--json').json['objects'] > 0, 'blocks in the pool')
        second = self.ask(page)
        for turn in (first, second):
            without, cached = turn['sides']
            self.assertTrue(without['words'])
            self.assertEqual(without['words'], cached['words'])
            self.assertTrue(turn['verdict'].startswith('The same answer.'), turn)
            for side in turn['sides']:
                self.assertRegex(side['figures']['First token'], r'^\d+(\.\d)? ms$')
                self.assertRegex(side['figures']['Answer'], r'^24 tokens in \d')
            self.assertRegex(without['figures']['From the cache'], r'^0 of \d+ tokens$')
        self.assertRegex(second['sides'][1]['figures']['From the cache'], r'^[1-9]\d* of \d+ tokens$')
        self.assertIn('tokens were not computed', second['verdict'])
        self.assert_fits(page, 'chat_page')
        page.ask('document.getElementById("tokens").value = "0"')
        page.ask('document.getElementById("form").noValidate = true')
        page.click('#ask')
        page.wait('!document.getElementById("trouble").hidden && document.getElementById("trouble").innerText', 'what was wrong')
        self.assertEqual([fault for fault in page.faults if '400' not in fault], [])


if __name__ == '__main__':
    unittest.main()
