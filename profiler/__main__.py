"""`python -m profiler` is `gcprof`."""

import gc
import sys

INTERRUPTED = 130  # as `profiler.cli` ends later


def main() -> None:
    """Run one command and end the process with its exit code."""
    try:  # the imports are in it, which take the first tenth of a second: Ctrl-C comes in them too
        if not {"-h", "--help", "--help-all"} & {*sys.argv[1:2]}:  # which need no server
            from profiler.core.server_process import start_early  # noqa: PLC0415  an interrupt comes here too

            start_early(sys.argv[1:])  # it imports torch while this process imports what reads the words
        from profiler.cli import main as run  # noqa: PLC0415  a tenth of a second, meanwhile

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # nothing was begun that there would be a word to say of
    finally:
        gc.freeze()  # the interpreter ends without a search for garbage, which takes 0.05 s


if __name__ == "__main__":
    main()
