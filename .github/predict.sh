#!/usr/bin/env bash
# Two steps of action.yml: install and predict. Inputs come as environment variables and are never part of the text of a
# command. Code of others runs in these steps alone, which have no token. It can rewrite this file: the steps after them
# are therefore written in action.yml, which the runner has read before.
set -euo pipefail
work="$RUNNER_TEMP/gcprof"

# a command of others' code, without what would let it speak to GitHub
alone() {
  env -u GH_TOKEN -u GITHUB_TOKEN -u GITHUB_ENV -u GITHUB_PATH -u GITHUB_OUTPUT -u GITHUB_STATE \
    -u GITHUB_STEP_SUMMARY -u ACTIONS_RUNTIME_TOKEN -u ACTIONS_ID_TOKEN_REQUEST_TOKEN "$@"
}

# files that others' code has written, as text: the runner obeys no workflow command in them
shown() {
  local word
  word="stop-$RANDOM$RANDOM$RANDOM$RANDOM"  # drawn after they were written
  printf '::stop-commands::%s\n' "$word"
  cat "$@"
  printf '\n::%s::\n' "$word"
}

install() {
  local code=0
  python -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --index-url https://download.pytorch.org/whl/cpu 'torch>=2.9' torchvision
  "$work/venv/bin/pip" install --quiet "$GITHUB_ACTION_PATH"
  [ -n "$REQUIREMENTS" ] || return 0
  alone "$work/venv/bin/pip" install --quiet "--requirement=$REQUIREMENTS" > "$work/installed" 2>&1 || code=$?
  shown "$work/installed"
  return "$code"
}

run_gcprof() {
  local code=0
  alone "${GCPROF:-$work/venv/bin/gcprof}" "$@" > "$use/stdout" 2> "$use/stderr" || code=$?
  shown "$use/stdout" "$use/stderr"
  return "$code"
}

# a text of any content, as a block of Markdown
indented() { printf '\n'; sed 's/^/    /' "$1"; printf '\n'; }

predict() {
  mkdir -p "$work"
  use=$(mktemp -d "$work/use-XXXXXX")  # a job may use the action twice
  local body="$use/comment.md" step=("--model=$MODEL") code=0
  [ -z "$DEVICE" ] || step+=("--device=$DEVICE")
  [ -z "$BATCH_SIZE" ] || step+=("--batch-size=$BATCH_SIZE")
  [ -z "$PRECISION" ] || step+=("--precision=$PRECISION")
  [ -z "$OPTIMIZER" ] || step+=("--optimizer=$OPTIMIZER")
  local words=(predict "${step[@]}" "--output=$use/run")
  [ -z "$STRATEGIES" ] || words+=("--strategies=$STRATEGIES")
  if [ -n "$FAIL_ON" ] && [ -z "$BASELINE" ]; then
    echo 'the gate `fail-on` has no `baseline` to compare with' | tee "$use/stderr"
    code=2
  else
    run_gcprof "${words[@]}" || code=$?
    [ "$code" != 0 ] || [ -z "$MAX_MEMORY" ] || run_gcprof fit "${step[@]}" "--memory=$MAX_MEMORY" || code=$?
  fi
  {
    printf '<!-- gcprof %s -->\n' "$(printf '%s\n' "${words[@]}" "$MAX_MEMORY" "$BASELINE" "$FAIL_ON" | grep -v -- '^--output=' |
      sha256sum | cut -c 1-16)"
    printf '## gcprof\n\n'
    if [ -f "$use/run/derived/table.md" ]; then cat "$use/run/derived/table.md"; else indented "$use/stderr"; fi
    [ -z "$MAX_MEMORY" ] || [ "$code" != 0 ] || printf '\nThe gate `max-memory` holds.\n'
    [ "$code" != 5 ] || { printf '\n**Nothing fits the memory of the gate `max-memory`.**\n' && indented "$use/stdout"; }
  } > "$body"
  if [ "$code" = 0 ] && [ -n "$BASELINE" ]; then compare "$body" || code=$?; fi
  head -c 60000 "$body" > "$body.cut" && mv "$body.cut" "$body"  # GitHub takes 65,536 characters
  cat "$body" >> "$GITHUB_STEP_SUMMARY"
  printf 'table=%s\ncode=%s\n' "$body" "$code" >> "$GITHUB_OUTPUT"
}

compare() {
  local words=(compare "--baseline=$BASELINE" "$use/run") code=0
  [ -z "$FAIL_ON" ] || words+=("--fail-on=$FAIL_ON")
  run_gcprof "${words[@]}" || code=$?
  {
    printf '\n### Against the baseline\n'
    indented "$use/stdout"
    [ "$code" = 0 ] || indented "$use/stderr"
    [ "$code" != 5 ] || printf '**Over the gate `fail-on`.**\n'
  } >> "$1"
  return "$code"
}

case "$1" in
  install | predict) "$1"; exit ;;  # nothing is read from this file after others' code has run
  *) echo "no such step: $1" >&2; exit 2 ;;
esac
