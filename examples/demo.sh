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

# Invented secrets among the dialogues, by which the audit at the end knows what a model remembers.
run tacit corpus plant demo/dialogues.jsonl demo/planted.jsonl demo/canaries.json --user user --text text \
  --users 12 --ladder 2,12 --length 3
# What a team would do without tacit: one model, no protection.
run tacit train examples/customersim.yaml corpus.path=demo/planted.jsonl
run tacit evaluate demo/finetuned
run tacit generate demo/finetuned --tokens 40 --prompt "SYS: Hello"

# An ensemble instead, whose answers carry a guarantee: what is left of the improvement, and an answer.
run tacit train examples/submix.yaml corpus.path=demo/planted.jsonl
run tacit evaluate demo/ensemble --nonprivate demo/finetuned --mechanism submix --mechanism certified \
  --epsilon 2 --queries 128 --block-size 64 --max-blocks 12
run tacit generate demo/ensemble --epsilon 2 --queries 40 --tokens 40 --prompt "SYS: Hello"

# One model again, but of text with secrets in it: masked where a policy finds them, with noise where it might
# have missed some, and a certificate of what that is worth.
run tacit corpus screen demo/planted.jsonl demo/screened.jsonl --user user --text text
run tacit corpus simulate demo/labelled.jsonl --users 60 --dialogues 3 --seed 9
run tacit corpus calibrate demo/calibration.json --labelled demo/labelled.jsonl
run tacit train examples/crt.yaml training.epochs=1
run tacit evaluate demo/confidential

# Somebody tries to get planted secrets out, of one member and through the mechanisms.
run tacit attack extraction --codes 4 --digits 3 --generations 30 --steps 30 --trunk-layers 26 \
  --mechanism submix --mechanism certified --epsilon 2

# A service instead of a command: the budget is in a ledger, and OpenAI's own client asks. What was answered above is not
# in it: tacit generate and tacit evaluate book nothing, and the statement below says what it covers.
run tacit ledger init demo/ensemble --epsilon 2 --mechanism submix-guarded --ledger demo/ledger.db
printf '\n\033[1m$ tacit keys create demo --ledger demo/ledger.db\033[0m\n'
echo "(The key goes to the client below by its environment and is not shown.)"
OPENAI_API_KEY=$(tacit keys create demo --ledger demo/ledger.db --json |
  python -c 'import json, sys; print(json.load(sys.stdin)["key"])')
export OPENAI_API_KEY
printf '\n\033[1m$ tacit serve demo/ensemble --queries 1000 --ledger demo/ledger.db &\033[0m\n'
echo "(In the background; what it prints is in demo/serving.json and demo/serving.log.)"
tacit serve demo/ensemble --queries 1000 --ledger demo/ledger.db --port 0 --admin-port 0 --json \
  >demo/serving.json 2>demo/serving.log &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until grep -q '^}' demo/serving.json; do
  kill -0 $server || { cat demo/serving.log; exit 1; }
  sleep 0.2
done
OPENAI_BASE_URL=$(python -c 'import json; print(json.load(open("demo/serving.json"))["url"])')
export OPENAI_BASE_URL
run python examples/ask.py
kill $server
wait $server
run tacit ledger statement --ledger demo/ledger.db
run tacit ledger verify --ledger demo/ledger.db

# What does it leak? Every attack that the Run allows, a verdict, and a report to read.
run tacit audit demo/finetuned --canaries demo/canaries.json
printf '\nThe report: %s\n' "$PWD/demo/finetuned/report.html"
