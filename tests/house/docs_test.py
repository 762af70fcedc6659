"""Documentation that cannot lie: its tables of options and metrics are what the daemons print, its example is code that runs, its scripts' help works.
With --update the tables are written again."""
import os
import re
import subprocess
import sys
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
BIN = os.environ.get('EMS_BIN', os.path.join(SOURCE_DIR, 'build', 'release', 'bin'))
# (daemon, option) → page
TABLES = {('mp-controller', '--help-config'): 'OPERATIONS.md', ('mp-server', '--help-config'): 'OPERATIONS.md',
          ('ems-pdc', '--help-config'): 'SERVING.md', ('mp-controller', '--help-metrics'): 'METRICS.md',
          ('mp-server', '--help-metrics'): 'METRICS.md'}


def read(*path):
    with open(os.path.join(SOURCE_DIR, *path), encoding='utf-8') as file:
        return file.read()


def table_pattern(command):
    return re.compile(r'(`%s %s`:\n\n```text\n)(.*?)(```)' % command, re.S)


def table(command):
    return subprocess.run([os.path.join(BIN, command[0]), command[1]], capture_output=True, text=True, check=True).stdout


class DocsTest(unittest.TestCase):
    def test_tables_are_what_the_daemons_print(self):
        for command, page in TABLES.items():
            shown = table_pattern(command).search(read('docs', page)).group(2)
            self.assertEqual(shown, table(command), f'run tests/house/docs_test.py --update ({command})')

    def test_the_examples_are_the_code_that_runs(self):
        for page, program in (('ENGINE_DEVELOPERS.md', 'kv_blocks.cc'), ('CPP_API.md', 'paged_kv.cc'),
                              ('MODEL_CACHING.md', 'model_load.cc')):
            blocks = re.findall(r'```cpp\n(.*?)```', read('docs', page), flags=re.S)
            code = read('examples', 'cpp', program).split('\n', 1)[1]  # behind the line that says what it is
            # The page does not indent what is inside a function; all else is the same.
            self.assertEqual(''.join(''.join(blocks).split()), ''.join(code.split()), page)

    def test_scripts_explain_themselves_and_refuse_nonsense(self):
        for script in ('deploy/quickstart.sh', 'deploy/cluster.sh', 'deploy/install_deps.sh', 'deploy/container/build.sh', 'tests/run.sh', 'tests/nightly.sh'):
            path = os.path.join(SOURCE_DIR, script)
            shown = subprocess.run([path, '--help'], capture_output=True, text=True, check=False)
            self.assertEqual(shown.returncode, 0, script)
            self.assertIn(os.path.basename(script), shown.stdout)
        for command in (['deploy/quickstart.sh', '--servers', 'many'], ['deploy/cluster.sh', 'dance'],
                        ['deploy/install_deps.sh', '--dance'], ['deploy/container/build.sh', '--dance'], ['tests/run.sh', '--dance'], ['tests/nightly.sh', 'dance']):
            run = subprocess.run([os.path.join(SOURCE_DIR, command[0])] + command[1:], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 2, f'{command}: {run.stdout}{run.stderr}')


if __name__ == '__main__':
    if sys.argv[1:] == ['--update']:
        for asked, name in TABLES.items():
            text = table_pattern(asked).sub(lambda m, a=asked: m.group(1) + table(a) + m.group(3), read('docs', name))
            with open(os.path.join(SOURCE_DIR, 'docs', name), 'w', encoding='utf-8') as out:
                out.write(text)
    else:
        unittest.main()
