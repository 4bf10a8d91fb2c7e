"""`kbroker` and `python -m kbroker`.

`serve` with plain arguments takes a short way past typer and rich, which cost more to import than
the broker takes to start; all else, help and mistakes included, goes through `kbroker.cli.app`.
The garbage collector is off while `serve` imports its modules, which stay: it would walk them over
and over. `node.run.serve` turns it on (`node.loop.garbage`).
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    """Run the command line. Returns the exit code."""
    _open_standard_streams()
    try:
        return _main()
    except KeyboardInterrupt:  # while modules are being imported
        return 130


def _open_standard_streams() -> None:
    """Where the program was started without one of them (`>&-`), /dev/null takes its place: else
    the next file that is opened would get its descriptor, and all that is printed with it.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, open(descriptor, "w" if descriptor else "r"))  # noqa: SIM115


def _main() -> int:
    if sys.argv[1:2] == ["serve"]:
        gc.disable()
        from kbroker.cli.serve import parse_plain, run_serve

        options = parse_plain(sys.argv[2:])
        if options is not None:
            return run_serve(options)
        gc.enable()
    from kbroker.cli.app import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
