# What developing needs. CI runs `just check`, the tests, the audit, the wheel and the documentation.
python := ".venv/bin/python"
site := ".venv/lib/python3.11/site-packages"

# lint, format, types
check:
    {{python}} -m ruff check .
    {{python}} -m ruff format --check .
    {{python}} -m mypy

# the quick tests that need no GPU: those of every capability, in six minutes on two cores
test:
    {{python}} -m pytest

# those that take a second or more
test-slow *words:
    {{python}} -m pytest -m "slow and not nightly" {{words}}

# all tests that need no GPU, the longest too; `just test-all -m nightly` runs these alone
test-all *words:
    {{python}} -m pytest -m "" {{words}}

# CUDA's tests, by PyTorch's own CUDA code, on devices that have memory and do no arithmetic
test-hollow *devices="h100,count=8 t4":
    for device in {{devices}}; do {{python}} -m pytest --hollow $device -m gpu || exit 1; done

# a training step on the hollow device of the installed torch against arithmetic, then rehearsals and plans there
smoke:
    {{python}} -m profiler.rehearsal.smoke
    {{python}} -m pytest -n 0 -m "" tests/test_torch_versions.py

# small changes to the code that tests must notice; takes hours, or minutes with --sample 60
mutants *words:
    {{python}} -m tests.mutants {{words}}

# write the golden files anew; look at the difference before committing it
golden:
    GCPROF_GOLDEN=1 {{python}} -m pytest -m "" tests/test_views.py tests/test_plan_views.py tests/test_progress_lines.py tests/test_screens.py tests/test_tables.py

# every picture of the README and the docs, by the commands of docs/results.md: writes docs/gallery/
pictures *words:
    {{python}} -m tests.gallery {{words}}

# the first ten minutes on a CUDA machine, in the order of their worth: all results in one archive
gpu folder="results/gpu" *words:
    {{python}} -m benchmarks gpu {{folder}} {{words}}

# what a CUDA machine with torch lacks of gcprof's needs, for `python3 -m benchmarks gpu` there
gpu-packages version="3.12":
    {{python}} -m pip install --quiet --upgrade --target build/gpu-site --python-version {{version}} --only-binary :all: --no-deps msgspec

# what a trial costs beyond its steps, and the help, beside the imports of a new interpreter
bench-startup *words:
    {{python}} -m benchmarks answers trial help {{words}}

# measured ratios, against loops of plain PyTorch in processes of their own: writes docs/tables/loops.md; on quiet cores
bench-loops:
    {{python}} -m benchmarks loops -o docs/tables/loops.md

# whole commands, each beside an import of torch; on quiet cores
bench-answers *words:
    {{python}} -m benchmarks answers {{words}}

# the best plans of long chains, timed
bench-planner:
    {{python}} -m benchmarks planner

# ten steps under a limit: which ways fit, and how much longer a step then takes; writes results/fit; on quiet cores
# --twins: small steps of the same families, measured
bench-fit *words:
    {{python}} -m benchmarks fit {{words}}

# whether the chosen plan is as fast as those beside it, measured anew
bench-worth *names:
    {{python}} -m benchmarks chosen {{names}}

# a run of 10,000 records, shown and exported; beside a plain reader of its file
bench-readers:
    {{python}} -m benchmarks readers

# kill -9 of a whole run at random moments
bench-kill times="50":
    {{python}} -m tests.kill --times {{times}}

# how often times are told apart that should be, and should not, beside busy processes too: writes docs/tables/noise.md
bench-noise *words:
    {{python}} -m benchmarks noise -o docs/tables/noise.md {{words}}

# every published system at CPU size, two minutes each
bench-published *names:
    #!/usr/bin/env bash
    names="{{names}}"
    for name in ${names:-$(basename -s .toml configs/published/*)}; do
        time timeout 120 {{python}} -m profiler reproduce "$name" --device cpu -o "$(mktemp -d)/run" || failed="$failed $name"
    done
    [ -z "$failed" ] || { echo "failed, or not within two minutes:$failed"; exit 1; }

# one small model of every family: writes docs/tables/models.md
bench-families *words:
    {{python}} -m tests.families {{words}}

# when sampling stops, on simulated steps of which the median is known
bench-sampling:
    {{python}} -m benchmarks sampling

# rehearsed bytes and estimates against bare loops of PyTorch on the hollow device: writes docs/tables/accuracy.md; an hour
bench-instrument *words:
    {{python}} -m benchmarks instrument -o docs/tables/accuracy.md {{words}}

# 204 operators on inputs and gradients that are not contiguous, against bare loops: writes its part of docs/tables/accuracy.md
bench-layouts *words:
    {{python}} -m benchmarks instrument --layouts -o docs/tables/accuracy.md {{words}}

# plans at 70 % of the peak of 20 models, run: writes its part of docs/tables/accuracy.md
bench-plans *words:
    {{python}} -m benchmarks plans -o docs/tables/accuracy.md {{words}}

# models at full size on GPUs that are not there: seconds and the host's memory, with bounds; writes docs/tables/rehearsed.md
bench-rehearse *words:
    {{python}} -m benchmarks rehearse -o docs/tables/rehearsed.md {{words}}

# bytes that others measured and published, beside the same step rehearsed and predicted: writes docs/tables/published-memory.md
bench-published-memory *words:
    {{python}} -m benchmarks published_memory.figures -o docs/tables/published-memory.md {{words}}

# training scripts as people write them, rehearsed and run without the watch: writes docs/tables/scripts.md; --traps: its second table
bench-scripts *words:
    {{python}} -m benchmarks scripts -o docs/tables/scripts.md {{words}}

# what the watch costs a step of a training script; on quiet cores. Whole rehearsals are lines of bench-answers
bench-script-overhead:
    {{python}} -m benchmarks script_overhead

# the documentation: pages made from the code, then the site, strictly
docs:
    {{python}} -m tests.pages
    NO_MKDOCS_2_WARNING=1 {{python}} -m mkdocs build --strict --quiet --site-dir build/site

# pages and words of the documentation, of which a test holds the bounds
words:
    {{python}} -m tests.pages

# users' steps that are easily read wrong, against plain PyTorch: writes docs/tables/cases.md
cases:
    {{python}} -m tests.cases

# a stranger's folder: every field and kind of word against every command that opens a folder
attack *words:
    GCPROF_ATTACK=whole {{python}} -m pytest -m "" tests/attack tests/test_consent.py {{words}}

# mutated files for as long as you like
fuzz *words:
    {{python}} -m tests.fuzz {{words}}

# users' modules made by chance, measured, against plain PyTorch: eight minutes
fuzz-modules *words:
    {{python}} -m tests.fuzz_modules {{words}}

# a run of 10,000 trials, one of 1,000 real ones and 500 rehearsals: costs, and what is left behind
bench-load *words:
    {{python}} -m tests.load {{words}}

# wheels, one pure and one for Linux with the prebuilt libraries of the hollow device, and source distribution in dist/,
# looked through; then the wheel in an empty folder, without test packages
wheel *sites=site:
    #!/usr/bin/env bash
    set -euo pipefail
    {{python}} -m build --outdir dist .
    rm -rf build/prebuilt
    {{python}} -m profiler.rehearsal.build build/prebuilt {{sites}}
    GCPROF_PREBUILT=$PWD/build/prebuilt {{python}} -m build --wheel --outdir dist .
    {{python}} -m tests.wheel dist/gcprof-*.whl
    wheel=$(ls -t "$PWD"/dist/gcprof-*.whl | head -n 1)
    empty=$(mktemp -d)
    trap 'rm -rf "$empty"' EXIT
    cd "$empty"
    python3 -m venv venv
    venv/bin/pip install "$wheel"
    venv/bin/python -c "import importlib.util as u; assert not u.find_spec('pytest')"
    venv/bin/gcprof --help
    venv/bin/gcprof doctor
    venv/bin/gcprof run mlp --segments 1,2 --rounds 1
    venv/bin/gcprof show
    env -i HOME="$empty" venv/bin/gcprof rehearse mlp --segments 1,2 --device t4  # without a compiler

# the headers and libraries of CUDA 12, for which older releases of torch are built, for `just wheel`
cuda12:
    python3 -m venv build/cuda12
    PIP_CONSTRAINT= build/cuda12/bin/pip install torch==2.9.1

# fails where a tag is not the version: `just tag-is-version v0.1.0`
tag-is-version tag:
    test "{{tag}}" = "v$({{python}} -c 'import profiler; print(profiler.__version__)')"

# known vulnerabilities of what CI installs; says so where the advisory service cannot be reached
audit:
    {{python}} -m tests.audit

# what CI installs, anew, from a fresh environment
lock:
    rm -rf build/lock
    python3 -m venv build/lock
    build/lock/bin/pip install --quiet '.[dev]' rust-just
    grep '^#' requirements/ci.txt > build/lock/ci.txt
    build/lock/bin/pip freeze --exclude gcprof | LC_ALL=C sort -f >> build/lock/ci.txt
    cp build/lock/ci.txt requirements/ci.txt
