"""bench/engines/device_copies.py: what it says where there is no GPU, and, with torch, that it moves the right bytes."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster import SOURCE_DIR

SCRIPT = os.path.join(SOURCE_DIR, 'bench', 'engines', 'device_copies.py')


def run(*arguments):
    return subprocess.run([sys.executable, '-B', SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=150,
                          env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})


class DeviceBenchTest(unittest.TestCase):
    def test_without_a_gpu_it_says_what_is_missing(self):
        ended = run('--quick')
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertRegex(ended.stderr, 'device_copies: torch .*(is not installed|sees no CUDA device)')
        self.assertEqual(ended.stdout, '')

    def test_it_runs_on_the_cpu_with_tensors_that_stand_for_a_devices(self):
        try:
            import torch  # pylint: disable=import-outside-toplevel,unused-import
        except ImportError:
            self.skipTest('torch is not installed')
        with tempfile.TemporaryDirectory(prefix='ems-bench-') as folder:
            ended = run('--quick', '--device', 'stand-in', '--bytes', '8000000', '--layouts', 'mha,mla', '--json', f'{folder}/out.json')
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            with open(f'{folder}/out.json', encoding='utf-8') as file:
                document = json.load(file)
        self.assertEqual(document['figures']['wrong_blocks'], 0)
        self.assertIn('stand-in', document['about']['device'])
        for name in ('drop_in_mha_load_vs_plain', 'vllm_mla_save_vs_plain', 'layers_overlap', 'plain_mha_host_to_device_gb_per_s'):
            self.assertIn(name, document['figures'])
        gates = {gate['name']: gate['kind'] for gate in document['gates']}
        self.assertEqual(gates['wrong_blocks'], 'exact')


if __name__ == '__main__':
    unittest.main()
