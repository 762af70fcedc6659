"""Drop-in surface: EmsException and its codes."""
import enum


class EmsErrorCode(enum.Enum):
    """The members that callers know; their numbers are this implementation's own."""
    EMS_INVALID_ARGUMENT = 1  # fix the call; the pool is fine
    EMS_IO_ERROR = 2          # the pool refuses or is at fault
    EMS_IO_TIMEOUT = 3        # nothing of a request was done within its time
    EMS_INTERNAL_ERROR = 4    # a bug here, or memory that this process cannot reach
    EMS_RECOVERD_ERROR = 5    # from Ems.init: the pool is not ready yet, try again once it is healthy


class EmsException(Exception):
    """What calls of the drop-in surface raise."""

    def __init__(self, status_code, message=''):
        super().__init__(status_code, message)
        self._status_code = status_code
        self._message = message

    def status_code(self):
        """The EmsErrorCode."""
        return self._status_code

    def message(self):
        return self._message

    def __str__(self):
        return f'{self._status_code.name}: {self._message}'


def invalid(message):
    return EmsException(EmsErrorCode.EMS_INVALID_ARGUMENT, message)


_OF_STATUS = {'INVALID_ARGUMENT': EmsErrorCode.EMS_INVALID_ARGUMENT, 'OUT_OF_RANGE': EmsErrorCode.EMS_INVALID_ARGUMENT,
              'DEADLINE_EXCEEDED': EmsErrorCode.EMS_IO_TIMEOUT, 'INTERNAL': EmsErrorCode.EMS_INTERNAL_ERROR}


def of_status(code, message):
    """The exception for the name of a status code."""
    return EmsException(_OF_STATUS.get(code, EmsErrorCode.EMS_IO_ERROR), message)
