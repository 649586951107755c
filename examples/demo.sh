#!/usr/bin/env bash
# The main job, end to end, with the commands a person would type. Everything lands in ./demo.
set -euo pipefail
cd "$(dirname "$0")/.."

run() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$@"
}

if [ -e demo ]; then
  echo "demo/ exists already; it is removed and made again."
  rm -rf demo
fi

run tacit models pull smollm2-135m-instruct
run tacit corpus simulate demo/dialogues.jsonl --users 30 --dialogues 3
run tacit corpus stats demo/dialogues.jsonl --user user --text text
run tacit train examples/customersim.yaml
run tacit evaluate demo/finetuned
run tacit generate demo/finetuned --tokens 80 --prompt "SYS: Hello"
