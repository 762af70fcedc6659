"""What an engine called when its own modules were run, and whether it calls the same again."""
import json
import os
import subprocess
import sys
import unittest


class RecordedCallsTest(unittest.TestCase):
    """Its subclass's file runs the engine's modules when it is called with `--host` and what else they need, and prints as its last
    line what they called. EMS_HOST_RECORD=1 writes that to RECORD."""
    ENGINE = RECORD = None

    @classmethod
    def setUpClass(cls):
        cls.recorded = {}
        if os.path.exists(cls.RECORD):
            with open(cls.RECORD, encoding='utf-8') as file:
                cls.recorded = json.load(file)

    def check_host(self, release, *arguments, **environment):
        ran = subprocess.run([sys.executable, '-B', sys.modules[type(self).__module__].__file__, '--host', *arguments],
                             capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ, **environment))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        calls = json.loads(ran.stdout.splitlines()[-1])
        if os.environ.get('EMS_HOST_RECORD'):
            self.recorded[release] = calls
            with open(self.RECORD, 'w', encoding='utf-8') as file:
                json.dump(self.recorded, file, indent=None, separators=(',', ':'))
                file.write('\n')
        self.assertEqual(calls, self.recorded.get(release), f'{self.ENGINE} calls otherwise than it did')
