"""How many blocks a step may save where several workers have to save the same ones: the scheduler's account of their copies."""
import collections
import math
import time


class Staging:
    """Copies in the memory of each worker, of which the scheduler hears nothing. Threading: vLLM's scheduler thread.

    A copy counts from the step that makes it until no worker can have it any more. Workers send it at the start of one of the next
    `ahead` steps, when they are told that no load failed, and the batch is over within `timeout` seconds: so `blocks_max` holds.
    """

    def __init__(self, blocks_max, ahead, timeout, clock=time.monotonic):
        self._blocks_max, self._ahead, self._timeout, self._clock = blocks_max, ahead, timeout, clock
        self._copies = collections.deque()  # [step, blocks, when they are over], oldest first

    def room(self, heard):
        """Blocks that the next step may save. heard: all workers have done the steps up to this one."""
        now = self._clock()
        for copies in self._copies:
            if copies[0] + self._ahead <= heard:
                copies[2] = min(copies[2], now + self._timeout)
        while self._copies and self._copies[0][2] <= now:
            self._copies.popleft()
        return max(0, self._blocks_max - sum(blocks for _, blocks, _ in self._copies))

    def take(self, step, blocks):
        """The step saves so many."""
        if blocks:
            self._copies.append([step, blocks, math.inf])
