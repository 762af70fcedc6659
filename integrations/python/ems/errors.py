"""The exceptions that calls of ems.Client and ems.ContextCache raise. A miss is not an error: it is None, or False."""


class Error(Exception):
    """Base of all. `code` is the name of the status code, e.g. 'UNAVAILABLE'."""
    code = 'UNKNOWN'

    def __init__(self, message='', code=None):
        super().__init__(message)
        if code is not None:
            self.code = code

    def __str__(self):
        text = super().__str__()
        return f'{self.code}: {text}' if text else self.code


class NotFound(Error, KeyError):
    """What was named is not there: a namespace, a node."""
    code = 'NOT_FOUND'


class AlreadyExists(Error):
    """The key has other content, and overwrite was not set."""
    code = 'ALREADY_EXISTS'


class InvalidArgument(Error, ValueError):
    """An argument that no retry makes right."""
    code = 'INVALID_ARGUMENT'


class OutOfRange(Error, ValueError):
    """A buffer or range that does not fit the value, or a value above the server's largest."""
    code = 'OUT_OF_RANGE'


class DeadlineExceeded(Error, TimeoutError):
    """The call's time is over."""
    code = 'DEADLINE_EXCEEDED'


class Cancelled(Error):
    """The call was taken back before it got there."""
    code = 'CANCELLED'


class Unavailable(Error, ConnectionError):
    """The pool, or the server that owns the key, cannot be reached."""
    code = 'UNAVAILABLE'


class Aborted(Error):
    """A put or remove whose server went before it answered: it may have been done, or not."""
    code = 'ABORTED'


class ResourceExhausted(Error):
    """No room, no quota, or too much waits."""
    code = 'RESOURCE_EXHAUSTED'


class DataLoss(Error):
    """Bytes did not match their checksum; they do not count."""
    code = 'DATA_LOSS'


class FailedPrecondition(Error):
    """The namespace is gone, or the view did not settle."""
    code = 'FAILED_PRECONDITION'


class PermissionDenied(Error, PermissionError):
    """The server does not let this client in."""
    code = 'PERMISSION_DENIED'


class Unimplemented(Error):
    """The server does not offer this."""
    code = 'UNIMPLEMENTED'


class Internal(Error):
    """A bug, or memory that cannot be reached."""
    code = 'INTERNAL'


_CLASSES = {cls.code: cls for cls in (NotFound, AlreadyExists, InvalidArgument, OutOfRange, DeadlineExceeded,
                                      Cancelled, Unavailable, Aborted, ResourceExhausted, DataLoss, FailedPrecondition,
                                      PermissionDenied, Unimplemented, Internal)}


def of(code, message):
    """The error for a status code; called by the extension module."""
    cls = _CLASSES.get(code)
    return cls(message) if cls is not None else Error(message, code)
