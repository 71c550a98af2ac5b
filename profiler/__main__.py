"""`python -m profiler` is `gcprof`."""

import sys

from profiler.core.server_process import start_early


def main() -> None:
    """Run one command and end the process with its exit code."""
    start_early(sys.argv[1:])  # it imports torch while this process imports what reads the words
    from profiler.cli import main as run  # noqa: PLC0415  a tenth of a second, meanwhile

    run()


if __name__ == "__main__":
    main()
