#!/usr/bin/env python3
"""Model caching while servers and the controller die, stop and come back in the middle of jobs and loads: everything
ends well and in time, what is loaded is byte-identical, and the source is read little more than once. What is read is
counted at the source."""
import os
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from model_testing import (  # noqa: E402
    S3_KEYS, Cluster, Proxy, KiB, difference, nginx, s3, s3_put, safetensors, tensors_of, total, wait_until, write_files)

BLOCK = 128 * KiB
FILES = {'config.json': b'{}', 'model.safetensors': safetensors(tensors_of(64, 256 * KiB, 7))}
LOADERS = 4


class FaultTest(unittest.TestCase):
    SERVER = {'models.pulls_max': 2}

    def begin(self, servers=3, flags=('--no-verify',), controller=None, **server):
        """Read once, so that what is read twice for other reasons is seen; with other flags, as they say."""
        self.cluster = self.enterContext(
            Cluster(servers=servers, server={**self.SERVER, **server}, controller=controller))
        www = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'www')
        os.mkdir(www)
        write_files(www, FILES)
        self.proxy = self.enterContext(Proxy(self.enterContext(nginx(www))))
        self.cluster.add('m@v1', f'http://127.0.0.1:{self.proxy.port}/m/', '--block', BLOCK, *flags)
        self.proxy.reset()

    def begin_with_a_store(self, servers=3, **server):
        """Of which the sums of files are known."""
        self.cluster = self.enterContext(Cluster(servers=servers, server={**self.SERVER, **server}))
        store = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 's3')
        os.mkdir(store)
        port = self.enterContext(s3(store))
        for path, data in FILES.items():
            s3_put(port, f'm/{path}', data)
        self.proxy = self.enterContext(Proxy(port))
        self.cluster.add('m@v1', f's3://models/m?endpoint=http://127.0.0.1:{self.proxy.port}', '--block', BLOCK, env=S3_KEYS)
        self.proxy.reset()

    def checked(self):
        return self.cluster.emsctl('model', 'show', 'm@v1', '--json').json['job']['checked_bytes']

    def in_the_middle_of_a_check(self, fault, at, times, damage=None):
        self.proxy.fault = damage or self.proxy.fault
        self.proxy.hold_after(int(at * total(FILES)))
        job = self.cluster.call('model', 'prefetch', 'm@v1', '--wait', '--json', '--within', 50)
        loaders = self.loaders()
        self.proxy.wait_until_held()
        # What each of them adds is in order, and some of what is held back now is in between.
        wait_until(lambda: self.checked() > total(FILES) - len(FILES['model.safetensors']), 'first blocks that are added up')
        self.assertLessEqual(self.cluster.emsctl('model', 'show', 'm@v1', '--json').json['blocks_known'], 1, 'but config.json')
        fault()
        self.proxy.let_go()
        answer = job.wait(60)
        self.assertEqual(answer.code, 0, answer)
        self.expect_loaded(loaders)
        self.expect_read_about_once(times)
        self.assertEqual(self.cluster.check('m@v1')['dram_bytes'], total(FILES))
        self.assertEqual(self.checked(), total(FILES))
        self.assertIn('checked model=m version=v1 file=model.safetensors', self.cluster.log('controller'))

    def test_a_server_is_killed_while_a_file_is_checked(self):
        self.begin_with_a_store()
        self.in_the_middle_of_a_check(lambda: self.cluster.kill('server-1'), 0.3, 1.3)

    def test_a_server_is_killed_while_a_damaged_file_is_checked(self):
        self.begin_with_a_store()
        self.in_the_middle_of_a_check(lambda: self.cluster.kill('server-1'), 0.3, 2.7,
                                      lambda path, number: ('flip', 9) if number % 7 == 3 and number < 30 else None)

    def test_the_controller_is_killed_while_a_file_is_checked(self):
        self.begin_with_a_store()

        def fault():
            self.cluster.kill('controller')
            self.cluster.start('controller')
        self.in_the_middle_of_a_check(fault, 0.5, 1.1)

    def test_a_job_that_is_cancelled_while_a_file_is_checked_is_taken_up(self):
        self.begin_with_a_store()
        self.proxy.hold_after(total(FILES) // 2)
        self.assertEqual(self.cluster.emsctl('model', 'prefetch', 'm@v1').code, 0)
        self.proxy.wait_until_held()
        self.assertEqual(self.cluster.emsctl('model', 'cancel', 'm@v1').code, 0)
        self.proxy.let_go()
        self.cluster.prefetch('m@v1')
        self.assertEqual(self.checked(), total(FILES))
        # Again what was just being read: two blocks of each server.
        self.expect_read_about_once(1 + 6 * BLOCK / total(FILES) + 0.01)

    def loaders(self):
        folders = [tempfile.mkdtemp(dir=self.cluster.folder) for _ in range(LOADERS)]
        return [(folder, self.cluster.call('model', 'load', 'm@v1', folder, '--verify', '--json', '--within', 50))
                for folder in folders]

    def expect_loaded(self, loaders):
        for folder, call in loaders:
            answer = call.wait(60)
            self.assertEqual(answer.code, 0, answer)
            self.assertEqual(difference(folder, FILES), [], answer)

    def expect_read_about_once(self, times=1.1):
        self.assertGreaterEqual(self.proxy.body_bytes, total(FILES))
        self.assertLessEqual(self.proxy.body_bytes, times * total(FILES))

    def in_the_middle(self, fault, at=0.1, times=1.1):
        """A job and loaders begin; the source holds still while `fault` happens: early, as what a dead server had is read again."""
        self.proxy.hold_after(int(at * total(FILES)))
        job = self.cluster.call('model', 'prefetch', 'm@v1', '--wait', '--json', '--within', 50)
        loaders = self.loaders()
        self.proxy.wait_until_held()
        fault()
        self.proxy.let_go()
        answer = job.wait(60)
        self.assertEqual(answer.code, 0, answer)
        self.expect_loaded(loaders)
        self.expect_read_about_once(times)
        self.assertEqual(self.cluster.check('m@v1')['dram_bytes'], total(FILES))

    def test_a_server_is_killed(self):
        self.begin()
        self.in_the_middle(lambda: self.cluster.kill('server-1'))

    def test_a_server_is_killed_while_damaged_blocks_are_read_twice(self):
        """As they are by default. Of what others know already the next owner reads one more time, not two."""
        self.begin(flags=())
        gets = self.proxy.gets
        self.proxy.fault = lambda path, number: ('flip', number) if number % 7 == 3 and gets.count(gets[number]) == 1 else None
        self.in_the_middle(lambda: self.cluster.kill('server-1'), at=0.3, times=2.7)

    def test_a_server_is_killed_and_comes_back(self):
        self.begin()

        def fault():
            self.cluster.kill('server-1')
            self.cluster.start('server-1')
        self.in_the_middle(fault)

    def test_a_pinned_version_outlives_a_damaged_read_of_what_a_dead_server_had(self):
        self.begin(servers=2)
        self.assertEqual(self.cluster.emsctl('model', 'pin', 'm@v1').code, 0)
        self.cluster.prefetch('m@v1')
        self.proxy.reset()
        self.proxy.fault = lambda path, number: ('flip', 100) if number < 2 else None
        self.cluster.kill('server-1')
        wait_until(lambda: self.cluster.check('m@v1').get('dram_bytes') == total(FILES), 'all of it, as it was read before')
        self.assertGreater(len(self.proxy.gets), 2)
        self.assertEqual(self.cluster.load('m@v1', FILES)['source_bytes'], 0)

    def test_a_server_is_stopped_and_goes_on(self):
        self.begin()

        def fault():
            self.cluster.kill('server-1', signal.SIGSTOP)
            self.cluster.wait_for_servers(2)
        self.in_the_middle(fault)
        self.cluster.kill('server-1', signal.SIGCONT)
        self.cluster.wait_for_servers(3)
        self.cluster.load('m@v1', FILES)
        # The others have read its third meanwhile, and it reads that again; a thirtieth was lost, and what was in flight.
        self.expect_read_about_once(1.5)

    def test_the_controller_is_killed_and_comes_back(self):
        self.begin()

        def fault():
            self.cluster.kill('controller')
            self.cluster.start('controller')
        self.in_the_middle(fault)

    def age_ms(self, name):
        nodes = self.cluster.emsctl('node', 'list', '--json').json
        return next(node['heartbeat_age_ms'] for node in nodes if node['name'] == name)

    def test_a_server_finds_the_controller_again_later_than_a_lease(self):
        """As on a busy machine. Its slots are still its own, or all that it has read would be read again, twice."""
        self.begin()

        def fault():
            self.cluster.kill('controller')
            self.cluster.kill('server-1', signal.SIGSTOP)
            self.cluster.start('controller')
            lease = self.cluster.CONTROLLER['lease_ms']
            wait_until(lambda: self.age_ms('server-1') > lease + 100, 'lease that is over')
            self.cluster.kill('server-1', signal.SIGCONT)
            wait_until(lambda: self.age_ms('server-1') < lease, 'server that is back')
        self.in_the_middle(fault, at=0.8)
        self.assertNotRegex(self.cluster.log('controller'), r'view published term=2 .* nodes=[^3]')

    def test_a_server_that_was_out_of_the_view_for_a_moment_finds_what_it_had_read(self):
        self.begin()

        def fault():
            # What is in flight besides is not known yet.
            in_flight = 3 * 2 * BLOCK
            wait_until(lambda: self.known() * BLOCK >= 0.8 * total(FILES) - in_flight, 'blocks that are known')
            self.cluster.kill('server-1', signal.SIGSTOP)
            self.cluster.wait_for_servers(2)
            self.cluster.kill('server-1', signal.SIGCONT)
            self.cluster.wait_for_servers(3)
        # What all were reading is read again, and what the others begin to read of its part.
        self.in_the_middle(fault, at=0.8, times=1 + 2 * 3 * 2 * BLOCK / total(FILES) + 0.01)

    def test_the_controller_is_away_while_versions_are_loaded(self):
        self.begin()
        self.proxy.hold_after(int(0.5 * total(FILES)))
        loaders = self.loaders()
        self.proxy.wait_until_held()
        self.cluster.kill('controller')
        self.proxy.let_go()
        wait_until(lambda: self.proxy.body_bytes >= total(FILES), 'servers that go on by themselves')
        self.cluster.start('controller')
        self.expect_loaded(loaders)
        self.expect_read_about_once()

    def restart_with_an_ssd(self, how):
        # However long it takes to start, it comes back before its slots are given away.
        self.begin(servers=2, controller={'lease_ms': 60000}, **{'ssd.capacity_bytes': '256MiB'})
        self.proxy.hold_after(total(FILES) // 2)
        job = self.cluster.call('model', 'prefetch', 'm@v1', '--wait', '--json', '--within', 50)
        self.proxy.wait_until_held()
        # What is not in flight is on the SSDs, and the controller knows of it.
        in_flight = 2 * 2 * BLOCK
        wait_until(lambda: self.stored() >= total(FILES) // 2 - in_flight, 'blocks on SSDs')
        wait_until(lambda: self.known() * BLOCK >= total(FILES) // 2 - in_flight, 'blocks that are known')
        self.cluster.kill('server-1', how)
        self.cluster.processes['server-1'].wait()
        self.cluster.start('server-1')
        self.proxy.let_go()
        answer = job.wait(60)
        self.assertEqual(answer.code, 0, answer)
        self.assertLessEqual(self.proxy.body_bytes, total(FILES) + in_flight)
        self.cluster.load('m@v1', FILES)

    def test_a_server_with_an_ssd_is_restarted(self):
        self.restart_with_an_ssd(signal.SIGTERM)

    def test_a_server_with_an_ssd_is_killed_and_comes_back(self):
        self.restart_with_an_ssd(signal.SIGKILL)

    def known(self):
        return self.cluster.emsctl('model', 'show', 'm@v1', '--json').json['blocks_known']

    def stored(self):
        return sum(self.cluster.emsctl('node', 'show', f'server-{i}', '--json').json['stats']['ssd']['value_bytes'] for i in range(2))

    def test_a_job_is_cancelled_and_another_goes_on(self):
        self.begin()
        self.proxy.hold_after(total(FILES) // 2)
        job = self.cluster.call('model', 'prefetch', 'm@v1', '--wait', '--within', 50)
        self.proxy.wait_until_held()
        self.assertEqual(self.cluster.emsctl('model', 'cancel', 'm@v1').code, 0)
        self.proxy.let_go()
        answer = job.wait()
        self.assertEqual(answer.code, 1, answer)
        self.assertIn('cancelled', answer.err)
        self.assertLess(self.proxy.body_bytes, 0.8 * total(FILES))
        self.cluster.load('m@v1', FILES)
        # What each server was reading when it heard of the cancelling is read again.
        self.expect_read_about_once(1 + 3 * 2 * BLOCK / total(FILES) + 0.01)

    def test_a_version_is_removed_while_it_is_loaded(self):
        self.begin()
        self.proxy.hold_after(total(FILES) // 2)
        loaders = self.loaders()
        self.proxy.wait_until_held()
        wait_until(lambda: all(os.listdir(folder) for folder, _ in loaders), 'loads that have begun, all of them')
        self.assertEqual(self.cluster.emsctl('model', 'delete', 'm@v1').code, 0)
        self.proxy.let_go()
        for folder, call in loaders:
            answer = call.wait(60)
            self.assertEqual(answer.code, 0, answer)
            self.assertIn('removed', answer.json['why_source'])
            self.assertEqual(difference(folder, FILES), [])
        self.assertEqual(self.cluster.emsctl('model', 'show', 'm@v1').code, 3)


if __name__ == '__main__':
    unittest.main()
