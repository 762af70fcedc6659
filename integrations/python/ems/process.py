"""fork(): threads and sockets of a connection are the parent's, and gRPC cannot start again in a child.

So a child of a process that has connected is told so, instead of crashing. A child made before that, or by spawn, is free.
"""
import os

from ems.errors import FailedPrecondition

_has_connected = False
_is_late_child = False
_forgetters = []


def connecting():
    """To be called before each connection. Raises FailedPrecondition in a child that cannot have one."""
    global _has_connected
    if _is_late_child:
        raise FailedPrecondition('this process was forked from one that had connected to the pool: fork earlier, or spawn')
    _has_connected = True


def at_fork_in_child(forget):
    """`forget` drops connections without ending them."""
    _forgetters.append(forget)


def _after_fork():
    global _is_late_child
    _is_late_child = _has_connected
    for forget in _forgetters:
        forget()


os.register_at_fork(after_in_child=_after_fork)
