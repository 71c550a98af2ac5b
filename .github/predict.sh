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
  local index=(--index-url https://download.pytorch.org/whl/cpu)
  [ -z "$COMMAND" ] || index=()  # PyTorch's own CUDA code rehearses it
  "$work/venv/bin/pip" install --quiet "${index[@]}" 'torch>=2.9' torchvision
  "$work/venv/bin/pip" install --quiet "$GITHUB_ACTION_PATH"
  [ -n "$REQUIREMENTS" ] || return 0
  alone "$work/venv/bin/pip" install --quiet "--requirement=$REQUIREMENTS" > "$work/installed" 2>&1 || code=$?
  shown "$work/installed"
  return "$code"
}

run_gcprof() {
  local code=0
  PATH="$work/venv/bin:$PATH" alone "${GCPROF:-$work/venv/bin/gcprof}" "$@" > "$use/stdout" 2> "$use/stderr" || code=$?
  shown "$use/stdout" "$use/stderr"
  return "$code"
}

# a text of any content, as a block of Markdown
indented() { printf '\n'; sed 's/^/    /' "$1"; printf '\n'; }

predict() {
  mkdir -p "$work"
  use=$(mktemp -d "$work/use-XXXXXX")  # a job may use the action twice
  local body="$use/comment.md" table="$use/run/derived/table.md" step=() script=() code=0 fits=0 why=""
  [ -z "$DEVICE" ] || step+=("--device=$DEVICE")
  [ -z "$BATCH_SIZE" ] || step+=("--batch-size=$BATCH_SIZE")
  [ -z "$PRECISION" ] || step+=("--precision=$PRECISION")
  [ -z "$OPTIMIZER" ] || step+=("--optimizer=$OPTIMIZER")
  local words=(predict "--model=$MODEL" "${step[@]}" "--output=$use/run") fit=(fit "--model=$MODEL" "${step[@]}")
  if [ -n "$COMMAND" ]; then
    script=(-- bash -c "$COMMAND") table="$use/table.md"
    words=(rehearse "--device=$DEVICE" "--output=$use/run") fit=(fit "--device=$DEVICE")
    [ -z "$FAIL_ON" ] || [ -n "$BASELINE" ] || words+=("--fail-on=$FAIL_ON")
    [ -z "$MODEL$BATCH_SIZE$PRECISION$OPTIMIZER" ] ||
      why='`model`, `batch-size`, `precision` and `optimizer` are not for a `command`, which has options of its own'
  elif [ -n "$FAIL_ON" ] && [ -z "$BASELINE" ]; then
    why='the gate `fail-on` has no `baseline` to compare with'
  fi
  [ -z "$STRATEGIES" ] || words+=("--strategies=$STRATEGIES")
  if [ -n "$why" ]; then
    echo "$why" | tee "$use/stderr"
    code=2
  else
    run_gcprof "${words[@]}" "${script[@]}" || code=$?
    if [ -n "$COMMAND" ] && [ -e "$use/run" ]; then  # what was said of a failure stays for the comment
      alone "${GCPROF:-$work/venv/bin/gcprof}" show "$use/run" --format=md > "$table" 2> /dev/null || true
    fi
    if [ "$code" = 0 ] && [ -n "$MAX_MEMORY" ]; then
      run_gcprof "${fit[@]}" "--memory=$MAX_MEMORY" "${script[@]}" || fits=$?
      code=$fits
    fi
  fi
  {
    printf '<!-- gcprof %s -->\n' "$(printf '%s\n' "${words[@]}" "${script[@]}" "$MAX_MEMORY" "$BASELINE" "$FAIL_ON" |
      grep -v -- '^--output=' | sha256sum | cut -c 1-16)"
    printf '## gcprof\n\n'
    if [ -s "$table" ]; then cat "$table"; else indented "$use/stderr"; fi
    [ -z "$MAX_MEMORY" ] || [ "$code" != 0 ] || printf '\nThe gate `max-memory` holds.\n'
    [ "$fits" != 5 ] || { printf '\n**Nothing fits the memory of the gate `max-memory`.**\n' && indented "$use/stdout"; }
    [ "$code" != 5 ] || [ "$fits" = 5 ] || printf '\n**Over the gate `fail-on`.**\n'
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
