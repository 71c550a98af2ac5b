"""What a built wheel holds that it may not: `python -m tests.wheel dist/*.whl`. Knows nothing of how it was built."""

import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

KINDS = {".py", ".typed", ".html", ".js", ".css", ".toml", ".json", ".jsonl", ".c", ".h"}
OTHERS = {
    "pytest_gcprof.py",  # pytest's plugin, beside the package
    "profiler/rehearsal/hollow/include/nv/target",  # of C++ alone, which headers of CUDA name
    "profiler/views/notes.md",  # which `gcprof note` prints
}
PREBUILT = re.compile(r"profiler/rehearsal/prebuilt/cu\d+/lib[\w-]+\.so(\.\d+)?")  # of the hollow CUDA device
TESTS = re.compile(r"tests?|test_.*|.*_test\.py|conftest\.py|benchmarks|hypothesis|__pycache__")
ABSOLUTE = re.compile(rb"(?<![\w.~:/])(?:/(?:home|root|Users|mnt|work|opt|srv)/\w[^\s\"'`]*|[A-Z]:\\\\?[A-Za-z]\w+)")
SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY|AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|hf_[A-Za-z]{30,}|sk-[\w-]{20,}"
    rb"|xox[abp]-[\w-]{10,}"
    rb"|(?i:password|passwd|secret|api_?key|auth_token)[\"']?\s*[=:]\s*[\"'][^\"'\s]{8,}[\"']"
)


def wrong(path: Path) -> list[str]:
    """Every file of a wheel that does not belong there, and every absolute path and secret in one that does."""
    found = []
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            first, *rest = PurePosixPath(name).parts
            if not (first.endswith(".dist-info") or name in OTHERS or PREBUILT.fullmatch(name)):
                is_ours = first in ("profiler", "gcprof") and ".." not in rest and PurePosixPath(name).suffix in KINDS
                found += [] if is_ours else [f"{name}: no file of the package"]
                found += [f"{name}: a test" for part in rest if TESTS.fullmatch(part)]
            text = wheel.read(name)
            found += [f"{name}: the path {one.decode()}" for one in ABSOLUTE.findall(text)]
            found += [f"{name}: what looks like a secret" for _ in SECRETS.findall(text)]
    return found


if __name__ == "__main__":
    found = [one for path in sys.argv[1:] for one in wrong(Path(path))]
    print(*found, f"{len(sys.argv) - 1} wheels, {len(found)} things that may not be there", sep="\n")
    sys.exit(bool(found) or not sys.argv[1:])
