"""`python -m gcprof` is `gcprof`."""

from profiler.__main__ import main

if __name__ == "__main__":
    main()
