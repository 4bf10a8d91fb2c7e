"""`kbroker` and `python -m kbroker`.

`serve` with plain arguments takes a short way past typer and rich, which cost more to import than
the broker takes to start; all else, help and mistakes included, goes through `kbroker.cli.app`.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line. Returns the exit code."""
    if sys.argv[1:2] == ["serve"]:
        from kbroker.cli.serve import parse_plain, run_serve

        options = parse_plain(sys.argv[2:])
        if options is not None:
            return run_serve(options)
    from kbroker.cli.app import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
