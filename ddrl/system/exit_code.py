"""What the command lines of this package return, and the one line that they say of bad input."""

from __future__ import annotations

from collections.abc import Callable

from ddrl.errors import NonFiniteError, UserError, file_error, is_of_a_file
from ddrl.system.notes import say, say_traceback


def exit_code(command: Callable[[], int | None]) -> int:
    """What a command line returns: the command's own code (None: 0), or 2 after one line.

    The line is that of a `UserError`; of a `NonFiniteError`, since settings with which training diverges are bad input;
    or of a file or folder that the system refused, wherever that was (`is_of_a_file`). Above the line of a crash stands
    the traceback of its cause; runtime ray has shown it by then and leaves none.
    Nothing else ends the command with a status of its own: a SystemExit is a failure as well.
    """
    try:
        return command() or 0
    except UserError as error:
        if error.is_crash and error.__cause__ is not None:
            say_traceback(error.__cause__)
        say(f"ddrl: {error}")
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
