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
run tacit corpus simulate demo/dialogues.jsonl --users 24 --dialogues 3
run tacit corpus stats demo/dialogues.jsonl --user user --text text

# What a team would do without tacit: one model, no protection.
run tacit train examples/customersim.yaml
run tacit evaluate demo/finetuned
run tacit generate demo/finetuned --tokens 40 --prompt "SYS: Hello"

# An ensemble instead, whose answers carry a guarantee: what is left of the improvement, and an answer.
run tacit train examples/submix.yaml
run tacit evaluate demo/ensemble --nonprivate demo/finetuned --mechanism submix --mechanism certified \
  --epsilon 2 --queries 128 --block-size 64 --max-blocks 12
run tacit generate demo/ensemble --epsilon 2 --queries 40 --tokens 40 --prompt "SYS: Hello"

# Somebody tries to get planted secrets out, of one member and through the mechanisms.
run tacit attack extraction --codes 4 --digits 3 --generations 30 --steps 30 --trunk-layers 26 \
  --mechanism submix --mechanism certified --epsilon 2
