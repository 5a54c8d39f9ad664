# Shared by the scripts here; sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${RINGMAIN_CACHE:-$root/.cache}
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/sbin:/sbin"

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The mirror of Debian 12 that the machine uses.
mirror() {
  local found
  found=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' \
    'Codename: bookworm' 2>/dev/null | head -n 1)
  echo "${found:-http://deb.debian.org/debian}"
}

# Options in `own` for an apt with package lists of its own in folder $1: those of suite $2, from the
# mirror that the machine uses. The package sources of the machine stay as they are.
own_apt() {
  mkdir -p "$1/apt/lists/partial" "$1/apt/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $2 main" >"$1/apt/sources"
  own=(-o Dir::Etc::SourceList="$1/apt/sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$1/apt/lists"
    -o Dir::Cache="$1/apt" -o APT::Sandbox::User=root)
}

# Runs a command that may take long: its name and a running clock on a terminal, its name and the
# time it took elsewhere. What it prints is shown only when it fails.
step() {
  local name=$1 log start=$SECONDS job status=0
  shift
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  trap 'kill "$job" 2>/dev/null; rm -f "$log"; exit 130' INT TERM
  if [ -t 2 ]; then
    while kill -0 "$job" 2>/dev/null; do
      printf '\r  %s ... %ds' "$name" $((SECONDS - start)) >&2
      sleep 0.5
    done
    printf '\r\033[K' >&2
  else
    say "  $name ..."
  fi
  wait "$job" || status=$?
  trap - INT TERM
  if [ "$status" -eq 0 ]; then
    say "  $name: done in $((SECONDS - start)) s"
  else
    say "  $name: failed"
    cat "$log" >&2
  fi
  rm -f "$log"
  return "$status"
}
