#!/usr/bin/env bash
# Everything that has to hold, from a fresh checkout: installs what is missing, then format, layers, builds, tests, exact
# gates of the benchmarks, sanitizers, fuzzers, clang-tidy and a short quick start. CI runs this very script.
#   tests/run.sh [--quick] [--all] [--since REV] [--only STEP[,STEP…]]
#     --quick      format, layers, release build, unit and integration tests; a few minutes
#     --all        sanitizers and clang-tidy on everything; without it, on what changed
#     --since REV  what changed since this commit; without it, since this branch left the main one, and on the main branch
#                  itself since its last commit that is older than a day
#     --only       these steps (see below), in their order; for work on one of them
# Steps: deps format layers release test gates asan tsan fuzz tidy quickstart; timed_gates only by name, on an idle machine
# Prints the closing lines of each ctest run, tests that were skipped, and at the end `N passed, N failed`: tests, and steps
# without tests. Exit codes: 0 all passed, 1 something failed, 2 usage. Logs stay in build/logs/. A step that fails does not
# stop the others.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

STEPS=(deps format layers release test gates asan tsan fuzz tidy quickstart)
QUICK_STEPS=(deps format layers release test)
NAMED_STEPS=(timed_gates)
FUZZ_SECONDS=15
TESTS_MIN=605       # a whole run of step test that finds fewer has lost some
TIDY_FILES_MAX=32   # those that changed most; --all has no bound
TIDY_SOURCES=('*.cc' ':!integrations/python') # gcc alone builds the Python module
JOBS=$(nproc)
LOGS=$PWD/build/logs

usage() {
  sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

steps=("${STEPS[@]}")
quick=0
all=0
since=
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=1 steps=("${QUICK_STEPS[@]}") ;;
    --all) all=1 ;;
    --since)
      since=${2:-}
      git rev-parse -q --verify "$since^{commit}" >/dev/null || { echo "run.sh: --since: no commit '$since'" >&2; exit 2; }
      shift
      ;;
    --only)
      IFS=, read -ra steps <<<"${2:-}"
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    *)
      echo "run.sh: unknown option '$1'; --help says what there is" >&2
      exit 2
      ;;
  esac
  shift
done
for step in "${steps[@]}"; do
  [[ " ${STEPS[*]} ${NAMED_STEPS[*]} " == *" $step "* ]] ||
    { echo "run.sh: no step '$step'; there are ${STEPS[*]} ${NAMED_STEPS[*]}" >&2; exit 2; }
done

mkdir -p "$LOGS"
passed=0
failed=0
failures=()

note_failure() {
  failed=$((failed + 1))
  failures+=("$1")
}

# run STEP WHAT COMMAND…: runs it quietly; one line with the result and the time; the end of its output when it failed.
run() {
  local step=$1 what=$2 start=$SECONDS
  shift 2
  "$@" >"$(log_of "$step" "$what")" 2>&1 </dev/null
  report "$step" "$what" "$start" $?
}

log_of() { echo "$LOGS/$1-${2//[^a-z0-9]/_}.log"; }  # log_of STEP WHAT

report() {  # report STEP WHAT STARTED EXIT_CODE
  local step=$1 what=$2 seconds=$((SECONDS - $3))
  if (($4 == 0)); then
    passed=$((passed + 1))
    printf '%-10s %-44s ok      %4d s\n' "$step" "$what" "$seconds"
    return 0
  fi
  note_failure "$step: $what"
  printf '%-10s %-44s FAILED  %4d s\n' "$step" "$what" "$seconds"
  tail -n 40 "$(log_of "$step" "$what")" | sed 's/^/    /'
  return 1
}

build() {  # build STEP PRESET TARGET…
  local step=$1 preset=$2
  shift 2
  run "$step" "configure $preset" cmake --preset "$preset" -DEMS_BUILD_TESTS=ON &&
    run "$step" "build $preset" ninja -C "build/$preset" "$@"
}

# run_ctest STEP PRESET FLAGS…: counts tests, not the step; prints the output of tests that failed and ctest's closing lines.
run_ctest() {
  local step=$1 preset=$2 start=$SECONDS summary bad all
  shift 2
  local log=$LOGS/$step-ctest.log
  ctest --test-dir "build/$preset" -j "$JOBS" --output-on-failure --no-tests=error "$@" >"$log" 2>&1 </dev/null
  summary=$(sed -n '/% tests passed/,$p' "$log")
  read -r bad all < <(sed -nE 's/.*% tests passed, ([0-9]+) tests failed out of ([0-9]+).*/\1 \2/p' <<<"$summary")
  if [[ -z ${all:-} ]]; then
    note_failure "$step: ctest did not run"
    tail -n 20 "$log"
    return 1
  fi
  ((bad)) && sed '/% tests passed/,$d' "$log" | grep -v ' Passed ' | tail -n 200
  echo "$summary" | sed 's/^/    /'
  passed=$((passed + all - bad))
  failed=$((failed + bad))
  ((bad)) && failures+=("$step: $bad of $all tests")
  printf '%-10s %-44s %s %6d s\n' "$step" "$((all - bad)) of $all tests" "$( ((bad)) && echo FAILED || echo 'ok    ')" \
    $((SECONDS - start))
  tests/skipped.py "build/$preset/Testing/Temporary/LastTest.log" "$log" | sed 's/^/    /'
  ((PIPESTATUS[0] == 0)) || note_failure "$step: a test skipped itself that may not (tests/skips.txt)"
  return $((bad > 0))
}

cpp_files() { git ls-files -- '*.h' '*.cc'; }

# The commit since which sources count as changed. A submission to the main branch may be several commits: a day of them.
base_revision() {
  local base
  [[ -n $since ]] && { echo "$since"; return; }
  base=$(git merge-base HEAD origin/HEAD 2>/dev/null) || base=
  if [[ -z $base || $base == $(git rev-parse HEAD) ]]; then
    base=$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 86400))" HEAD)
  fi
  echo "${base:-$(git rev-list --max-parents=0 HEAD | tail -n 1)}"
}

# Sources that changed, those with the most changed lines first. A file that only moved counts by what changed in it.
changed_sources() {
  git diff --numstat -M --diff-filter=d "$(base_revision)" -- "${TIDY_SOURCES[@]}" | sort -rn |
    sed -E 's/^[0-9]+\t[0-9]+\t//; s/\{(.*) => (.*)\}/\2/; s/.* => //; s,//,/,g'
}

step_deps() {
  run deps 'packages of deploy/packages.txt' deploy/install_deps.sh
  # What npm notes of an installation is older than the lock file: that has changed since.
  [[ tests/node_modules/.package-lock.json -nt tests/package-lock.json ]] ||
    # Not npm ci: it wants optional packages of all platforms in the lock file, and not every registry has those.
    run deps 'packages of tests/package.json' npm install --no-save --prefix tests --ignore-scripts --omit=optional --no-audit --no-fund
}

step_format() {
  check_format() { cpp_files | xargs -r clang-format --dry-run -Werror; }
  run format 'clang-format' check_format
  check_scripts() {
    local script
    for script in deploy/*.sh deploy/container/*.sh tests/*.sh .ci/run; do bash -n "$script" || return 1; done
  }
  run format 'scripts parse' check_scripts
}

step_layers() { run layers 'check_layers.py' tools/check_layers.py; }

step_release() { build release release; }

step_test() {
  if ((quick)); then
    run_ctest test release -L 'unit|integration'
  else
    run_ctest test release
    (($(sed -nE 's/.* tests failed out of ([0-9]+).*/\1/p' "$LOGS/test-ctest.log") >= TESTS_MIN)) ||
      note_failure "test: fewer than $TESTS_MIN tests; some are lost, or TESTS_MIN of tests/run.sh is too high"
  fi
}

# Gates on counts, hit rates, bytes and tokens, which are the same on any machine.
step_gates() { run gates 'exact gates of ems-bench' tests/gates.sh exact; }

step_timed_gates() { run timed_gates 'gates on time of ems-bench' tests/gates.sh timed; }

# build_and_test STEP PRESET TARGETS FLAGS…: of the tests that ctest lists with these flags, those that a change can have
# broken; builds their programs and TARGETS.
build_and_test() {
  local step=$1 preset=$2 targets=($3) chosen numbers programs range=()
  shift 3
  run "$step" "configure $preset" cmake --preset "$preset" -DEMS_BUILD_TESTS=ON || return
  ((all)) || range=(--since "$(base_revision)")
  if ! chosen=$(tests/affected.py --build "build/$preset" "${range[@]}" "$@"); then
    note_failure "$step: tests/affected.py could not tell which tests to run"
    return 1
  fi
  { read -r numbers; read -r programs; } <<<"$chosen"
  if [[ -z ${numbers:-} ]]; then
    printf '%-10s %-44s\n' "$step" 'nothing changed that its tests are made of'
    return
  fi
  read -ra programs <<<"$programs"
  run "$step" "build $preset" ninja -C "build/$preset" "${targets[@]}" "${programs[@]}" &&
    run_ctest "$step" "$preset" -I "0,0,0,$numbers"  # with a label beside it, ctest counts only tests that have it
}

# Without what looks at files and names alone, what says how soon a loop under load serves again, and what has to fill a
# disk by load within a time; emsctl is what tests in Python call.
step_asan() {
  build_and_test asan asan emsctl -L 'unit|integration|fault' -LE e2e -E '^house/|/abi_test$|/serving_loop_kill_test$|/ssd_full_disk_test$'
}

step_tsan() { build_and_test tsan tsan '' -L concurrent; }

step_fuzz() {
  local source name targets=()
  for source in tests/fuzz/*_fuzzer.cc; do targets+=("$(basename "$source" .cc)"); done
  build fuzz fuzz "${targets[@]}" || return
  fuzz() {  # fuzz NAME
    local found=build/fuzz/found/$1 corpus=()
    mkdir -p "$found"
    [[ -d tests/fuzz/corpus/${1%_fuzzer} ]] && corpus=("tests/fuzz/corpus/${1%_fuzzer}")
    "build/fuzz/bin/$1" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="$found-" "$found" "${corpus[@]}"
  }
  local i what start
  for ((i = 0; i < ${#targets[@]}; i += JOBS)); do  # each has a core for itself, and all take the same time
    local -A running=()
    start=$SECONDS
    for name in "${targets[@]:i:JOBS}"; do
      what="$name for $FUZZ_SECONDS s"
      fuzz "$name" >"$(log_of fuzz "$what")" 2>&1 </dev/null &
      running[$what]=$!
    done
    for name in "${targets[@]:i:JOBS}"; do
      what="$name for $FUZZ_SECONDS s"
      wait "${running[$what]}"
      report fuzz "$what" "$start" $?
    done
  done
}

step_tidy() {
  # The commands of each source by itself; generated headers have to be there.
  run tidy 'configure tidy' cmake --preset tidy &&
    run tidy 'generated headers' ninja -C build/tidy ems_config_options_proto ems_config_proto ems_controller_proto ems_etcd_proto ems_model_proto ems_pdc_proto ems_bench_commit || return
  local sources
  if ((all)); then
    mapfile -t sources < <(git ls-files -- "${TIDY_SOURCES[@]}")
  else
    mapfile -t -n "$TIDY_FILES_MAX" sources < <(changed_sources)
  fi
  tidy_files() { printf '%s\n' "$@" | xargs -r -n 1 -P "$JOBS" clang-tidy -p build/tidy --quiet; }
  ((${#sources[@]} == 0)) || run tidy "clang-tidy on ${#sources[@]} files" tidy_files "${sources[@]}"
}

step_quickstart() { run quickstart 'a tenth of the trace' deploy/quickstart.sh --requests 1200; }

for step in "${steps[@]}"; do
  "step_$step"
done

echo
if ((failed)); then printf 'failed: %s\n' "${failures[@]}"; fi
echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s on $JOBS cores"
echo "$passed passed, $failed failed"
exit $((failed > 0))
