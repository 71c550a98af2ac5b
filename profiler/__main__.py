"""`python -m profiler` is `gcprof`."""

from profiler.cli import main

if __name__ == "__main__":
    main()
