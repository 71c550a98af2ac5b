#!/usr/bin/env bash
# The steps of action.yml: install, predict, comment, gate. Inputs come as environment variables and are never part of
# the text of a command; the model's code runs in `predict` alone, which has no token.
set -euo pipefail
work="$RUNNER_TEMP/gcprof"
body="$work/comment.md"

install() {
  python -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --index-url https://download.pytorch.org/whl/cpu 'torch>=2.9' torchvision
  "$work/venv/bin/pip" install --quiet "$GITHUB_ACTION_PATH"
  [ -z "$REQUIREMENTS" ] || "$work/venv/bin/pip" install --quiet --requirement "$REQUIREMENTS"
}

# gcprof without what would let the model's code speak to GitHub; its last word is kept, and its exit code
run_gcprof() {
  local code=0
  env -u GH_TOKEN -u GITHUB_TOKEN -u GITHUB_ENV -u GITHUB_PATH -u GITHUB_OUTPUT -u GITHUB_STEP_SUMMARY \
    -u ACTIONS_RUNTIME_TOKEN -u ACTIONS_ID_TOKEN_REQUEST_TOKEN \
    "${GCPROF:-$work/venv/bin/gcprof}" "$@" > "$work/stdout" 2> "$work/stderr" || code=$?
  cat "$work/stdout" "$work/stderr"
  return "$code"
}

# a text of any content, as a block of Markdown
indented() { printf '\n'; sed 's/^/    /' "$1"; printf '\n'; }

predict() {
  mkdir -p "$work"
  local words=(predict "--model=$MODEL" "--output=$work/run") code=0
  [ -z "$STRATEGIES" ] || words+=("--strategies=$STRATEGIES")
  [ -z "$DEVICE" ] || words+=("--device=$DEVICE")
  [ -z "$BATCH_SIZE" ] || words+=("--batch-size=$BATCH_SIZE")
  [ -z "$PRECISION" ] || words+=("--precision=$PRECISION")
  [ -z "$OPTIMIZER" ] || words+=("--optimizer=$OPTIMIZER")
  [ -z "$MAX_MEMORY" ] || words+=("--memory=$MAX_MEMORY")
  run_gcprof "${words[@]}" || code=$?
  {
    printf '<!-- gcprof %s -->\n' "$(printf '%s\n' "${words[@]}" | grep -v -- '^--output=' | sha256sum | cut -c 1-16)"
    printf '## gcprof\n\n'
    if [ -f "$work/run/derived/table.md" ]; then cat "$work/run/derived/table.md"; else indented "$work/stderr"; fi
    [ -z "$MAX_MEMORY" ] || [ "$code" != 0 ] || printf '\nThe gate `max-memory` holds.\n'
    [ "$code" != 5 ] || printf '\n**No strategy fits the memory of the gate `max-memory`.**\n'
  } > "$body"
  if [ "$code" = 0 ] && [ -n "$BASELINE" ]; then compare || code=$?; fi
  printf '%s\n' "$code" > "$work/code"
  head -c 60000 "$body" > "$body.cut" && mv "$body.cut" "$body"  # GitHub takes 65,536 characters
  cat "$body" >> "$GITHUB_STEP_SUMMARY"
  printf 'table=%s\n' "$body" >> "$GITHUB_OUTPUT"
}

compare() {
  local words=(compare "$BASELINE" "$work/run") code=0
  [ -z "$FAIL_ON" ] || words+=("--fail-on=$FAIL_ON")
  run_gcprof "${words[@]}" || code=$?
  {
    printf '\n### Against the baseline\n'
    indented "$work/stdout"
    [ "$code" = 0 ] || indented "$work/stderr"
    [ "$code" != 5 ] || printf '**Over the gate `fail-on`.**\n'
  } >> "$body"
  return "$code"
}

# one comment for each model and its settings, which every push writes anew
comment() {
  local marker id method=POST place="repos/$REPOSITORY/issues/$NUMBER/comments"
  marker=$(head -n 1 "$body")
  id=$(MARKER="$marker" gh api "$place" --paginate --jq \
    '.[] | select(.user.type == "Bot" and (.body | startswith(env.MARKER))) | .id' | head -n 1) || id=""
  if [ -n "$id" ]; then method=PATCH place="repos/$REPOSITORY/issues/comments/$id"; fi
  gh api --method "$method" "$place" --field "body=@$body" > /dev/null ||
    echo "::warning::the table could not be commented: the token of a fork may only read; it is in the job's summary"
}

gate() { exit "$(cat "$work/code")"; }

case "$1" in
  install | predict | comment | gate) "$1" ;;
  *) echo "no such step: $1" >&2; exit 2 ;;
esac
