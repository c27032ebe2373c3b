# shellcheck shell=bash
# Sourced by both scripts: reads options, finds the program, prepares the tokenizer.
shoal=build/release/apps/shoal data='' out=''
while [ $# -gt 0 ]; do
  case "$1" in
    --data | --shoal | --out)
      [ $# -gt 1 ] || { echo "$0: $1 needs a value" >&2; exit 2; }
      case "$1" in --data) data=$2 ;; --shoal) shoal=$2 ;; --out) out=$2 ;; esac
      shift 2 ;;
    --) shift; break ;;
    *) echo "$0: there is no option '$1'; there are --data DIR, --shoal PATH, --out DIR and --" >&2
       exit 2 ;;
  esac
done
more=("$@")
[ -n "$data" ] || { echo "$0: give --data DIR" >&2; exit 2; }
out=${out:-out/$(basename "$0" .sh)}
mkdir -p "$out/tokenizer"
cp "$data/bert-base-uncased-vocab.txt" "$out/tokenizer/vocab.txt"

# train NAME option value ...: trains into $out/NAME and logs to $out/NAME.log.
train() {
  local name=$1
  shift
  "$shoal" train --tokenizer_name "$out/tokenizer" --save_strategy no --logging_steps 100 \
    --output_dir "$out/$name" --overwrite_output_dir true --disable_tqdm true "$@" "${more[@]}" \
    >"$out/$name.log" 2>&1 || { tail -n 3 "$out/$name.log" >&2; exit 1; }
}

# number NAME FILE: prints the number NAME of a JSON file of results.
number() { sed -n "s/^ *\"$1\": \([-0-9.e]*\),*$/\1/p" "$2"; }

# verdict FIGURE WORD LIMIT TEXT: prints the result; status 1 if FIGURE is not WORD (above, below) LIMIT.
verdict() {
  awk -v figure="$1" -v word="$2" -v limit="$3" -v text="$4" 'BEGIN {
    good = word == "above" ? figure >= limit : figure < limit
    printf "%s: %s, must be %s %s: %s\n", text, figure, word, limit, good ? "reached" : "MISSED"
    exit !good
  }'
}
