"""Exit codes of the command lines, and the one line that they print for bad input."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable

from ddrl.errors import NonFiniteError, UserError, file_error, is_of_a_file
from ddrl.system.notes import say, say_traceback

# A process that ends needs no search for unreachable objects, which takes half a second where torch is loaded.
atexit.register(gc.freeze)


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code (None: 0), or 2 after printing one line about bad input.

    Bad input is a `UserError`, a `NonFiniteError` (settings with which training diverges), or a file or folder that the
    system refused (`is_of_a_file`). If an environment crashed, the traceback of the cause is printed first; runtime ray
    has printed it already and sets no cause. A SystemExit is a failure too, whatever its status.
    """
    try:
        return command() or 0
    except UserError as error:
        if error.is_crash and error.__cause__ is not None:
            say_traceback(error.__cause__)
        say(str(error) if error.names_command else f"ddrl: {error}")
        return error.status
    except SystemExit as error:
        say_traceback(error)
        say(f"ddrl: SystemExit: {error.code}: what stands above has ended the command before it was done")
        return 2
    except OSError as error:
        if not is_of_a_file(error):
            raise
        say(f"ddrl: {file_error(error)}")
        return 2
    except NonFiniteError as error:
        say(f"ddrl: {error}")
        return 2
