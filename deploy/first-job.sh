#!/usr/bin/env bash
# One whole job against a fresh server on the embedded default, every step shown as the curl call it is.
# Called by ./dev run; ONCE=1 stops the server at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

state=$(mktemp -d "${TMPDIR:-/tmp}/sandgate-run.XXXXXX")
build/sandgate serve --state-dir "$state" --listen "${LISTEN:-127.0.0.1:8080}" 2>"$state/log" &
server=$!
stop() {
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  rm -rf "$state"
}
trap stop EXIT
trap 'exit 130' INT TERM

fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$state/log" >&2
  exit 1
}

# The server logs its address once it listens; curl then waits for readiness.
url=$(timeout 20 sh -c 'until u=$(sed -n "s/.*\"event\":\"listening\".*\"url\":\"\([^\"]*\)\".*/\1/p" "$1") && [ -n "$u" ]; do
  kill -0 "$2" || exit 1; sleep 0.05; done; echo "$u"' _ "$state/log" "$server") || fail "the server did not start"
curl -fsS --retry 40 --retry-delay 1 --retry-connrefused --retry-all-errors -o /dev/null "$url/readyz" || fail "not ready"
echo "sandgate is ready at $url (log: $state/log)"

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
call() { # METHOD PATH [curl options...]
  local method=$1 path=$2
  shift 2
  printf '$ curl -X %s %s%s' "$method" "$url" "$path" >&2
  [ $# -gt 0 ] && printf ' %q' "$@" >&2
  printf '\n' >&2
  curl -sS --fail-with-body -X "$method" "$url$path" "$@" || fail "$method $path"
}
json=(-H 'Content-Type: application/json')

step '1. Which backend would a job get, and why?'
call POST /select "${json[@]}" -d '{"policy":{"required_capabilities":["file_rw","exec","public_url"]}}'

step '2. Lease a sandbox'
lease=$(call POST /leases "${json[@]}" -d '{"trajectory_id":"first-job","timeout_sec":600,"env":{"GREETING":"hello"}}')
echo "$lease"
id=$(printf '%s' "$lease" | sed -n 's/^{"id":"\([^"]*\)".*/\1/p')
[ -n "$id" ] || fail "no lease id in the answer"

step '3. Run a command in it'
out=$(call POST "/leases/$id/exec" "${json[@]}" -d '{"command":"echo $GREETING from $(id -un) in $PWD"}')
echo "$out"
[[ $out == *'hello from sandbox in /workspace'* ]] || fail "unexpected output"

step '4. Write a file and read it back'
call PUT "/leases/$id/files?path=page/index.html" --data-binary '<h1>served from inside the sandbox</h1>'
call GET "/leases/$id/files?path=page/index.html"
echo

step '5. Start a web server in it and reach it from outside'
call PUT "/leases/$id/files?path=server.pl" --data-binary @- <<'PERL'
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1:8000", Listen => 16, ReuseAddr => 1) or die $!;
open my $ready, ">", "ready"; close $ready;
while (my $client = $server->accept) {
    while (defined(my $line = <$client>)) { last if $line =~ /^\r?$/ }
    open my $file, "<", "page/index.html"; local $/; my $page = <$file>;
    print $client "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: " . length($page) . "\r\n";
    print $client "Connection: close\r\n\r\n$page";
    close $client;
}
PERL
call POST "/leases/$id/exec" "${json[@]}" \
  -d '{"command":"perl server.pl >/dev/null 2>&1 & until [ -e ready ]; do sleep 0.02; done"}'
call GET "/leases/$id/endpoints/8000"
page=$(call GET "/leases/$id/proxy/8000/")
echo "$page"
[[ $page == *'served from inside the sandbox'* ]] || fail "the endpoint did not answer"

step '6. Terminate'
call DELETE "/leases/$id"

printf '\nThe whole job is done.\n'
[ "${ONCE:-0}" = 1 ] && exit 0
printf 'The server keeps running at %s; Ctrl-C stops it.\n' "$url"
wait "$server"
