# shellcheck shell=bash
# How many tests passed, failed and were skipped, from what a suite wrote.

# Tests that say themselves that they do not run, as "SKIPPED TEST: WHY" or "skipped: WHY". The runner counts them as
# passed. One that has started itself again may say it twice.
skip_lines() { sed -nE 's/^[[:space:]]*SKIPPED:? +//Ip' "$1" | sort -u; }

# What was left out and why: such lines, and those of the scripts.
skip_reasons() {
  if own_totals "$1" >/dev/null; then
    sed -nE 's/^(skip|skipped) +//p' "$1"
  else
    skip_lines "$1"
  fi
}

# Which tests failed and what they said of it, for the end of a long output.
failures() {
  sed -nE -e '/^(fail|FAIL) +/p' -e '/^test .* \.\.\. FAILED$/p' -e '/^ +(FAIL|TIMEOUT|SIG[A-Z]+) \[/p' \
    -e '/^thread .* panicked at /{p;n;p;n;p}' -e '/^error(\[|:)/p' -e '/^ended after /p' "$1" | cut -c1-240 | awk '!seen[$0]++' | head -n 24
}

# The tests that held a private host for longest: "SECONDS s NAME".
slowest() { sed -nE 's/^PRIVATE HOST of (.*): ([0-9.]+) s$/\2 s \1/p' "$1" | sort -rn | head -n 6; }

own_totals() { grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -n 1 | grep .; }

# count LOG EXIT   sets passed, failed, skipped
count() {
  local log=$1 code=$2 line said p f i
  passed=0 failed=0 skipped=0
  said=$(skip_lines "$log" | wc -l)
  if line=$(own_totals "$log"); then
    read -r passed _ failed _ skipped _ <<<"$line"
  elif line=$(grep -E '^ +Summary \[' "$log" | tail -n 1 | grep .); then # cargo nextest
    passed=$(($(_number passed "$line") - said))
    failed=$(($(_number failed "$line") + $(_number 'timed out' "$line")))
    skipped=$said
  elif grep -q '^test result:' "$log"; then # cargo test
    while read -r p f i; do
      passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + i))
    done < <(_test_results <"$log")
    passed=$((passed - said)) skipped=$((skipped + said))
  elif [ "$said" -gt 0 ]; then
    skipped=$said
  elif [ "$code" = 0 ]; then
    passed=1
  fi
  # Whatever it says of itself: it failed.
  [ "$code" = 0 ] || [ "$failed" -gt 0 ] || failed=1
}

# "PASSED FAILED IGNORED" of each program that ran. One that starts itself again has such lines in its output as well;
# its own is the last.
_test_results() {
  awk '
    function flush() { if (last) { split(last, w, /[^0-9]+/); print w[2], w[3], w[4] } last = "" }
    /^ +(Running|Doc-tests) / { flush() }
    /^test result:/ { last = $0 }
    END { flush() }'
}

# _number WORD LINE   the number before that word, or 0
_number() { grep -oE "[0-9]+ $1" <<<"$2" | grep -oE '^[0-9]+' || echo 0; }
