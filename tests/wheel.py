"""What a built wheel holds that it may not: `python -m tests.wheel dist/*.whl`. Knows nothing of how it was built."""

import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

KINDS = {".py", ".typed", ".html", ".js", ".css", ".toml", ".json", ".jsonl", ".c", ".h"}
PLUGIN = "pytest_gcprof.py"  # of pytest, beside the package
EMPTY_HEADER = "profiler/rehearsal/hollow/include/nv/target"  # of C++ alone, which headers of CUDA name
NOTES = "profiler/views/notes.md"  # which `gcprof note` prints
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
            found += _names(name)
            text = wheel.read(name)
            found += [f"{name}: the path {one.decode()}" for one in ABSOLUTE.findall(text)]
            found += [f"{name}: what looks like a secret" for _ in SECRETS.findall(text)]
    return found


def _names(name: str) -> list[str]:
    first, *rest = PurePosixPath(name).parts
    if first.endswith(".dist-info") or name in (PLUGIN, NOTES) or PREBUILT.fullmatch(name):
        return []
    if (
        first not in ("profiler", "gcprof")
        or ".." in rest
        or (PurePosixPath(name).suffix not in KINDS and name != EMPTY_HEADER)
    ):
        return [f"{name}: no file of the package"]
    return [f"{name}: a test" for part in rest if TESTS.fullmatch(part)][:1]


def main(paths: list[str]) -> int:
    found = [one for path in paths for one in wrong(Path(path))]
    for one in found:
        print(one)
    print(f"{len(paths)} wheels, {len(found)} things that may not be there")
    return int(bool(found) or not paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
