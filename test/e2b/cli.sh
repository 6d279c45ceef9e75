# Uses an unmodified release of the public command line: list, exec with pipes, connect, kill.
# cli.sh PYTHON COMMAND...; with OLD, only these commands: each of them starts Node.js.
set -eu
python=$1
shift
id=$("$python" -c "from e2b import Sandbox; print(Sandbox.create(timeout=3600, metadata={'by': 'cli'}).sandbox_id)")
"$@" sandbox list | grep "$id"
test "$(echo piped | "$@" sandbox exec "$id" cat)" = piped
code=0
# The output fits into a pipe: the client exits without waiting until the rest is written.
out=$("$@" sandbox exec "$id" -- sh -c 'seq 1 9000; echo hidden >&2; exit 5' 2>/dev/null) || code=$?
test "$code" = 5
test "$(echo "$out" | tail -n 1)" = 9000
"$python" connect.py "$id" "$@"
if [ -z "${OLD-}" ]; then
  "$@" sandbox list --format json | grep "\"$id\""
  test "$(head -c 3000000 /dev/zero | "$@" sandbox exec "$id" -- wc -c)" = 3000000
  "$@" sandbox logs --format json "$id" | grep '"logger":"aio".*serving on'
  "$@" sandbox logs "$id" | grep 'serving on'
  "$@" sandbox metrics "$id" | grep -i mem
  "$@" template list | grep base # older releases require a token besides the key
fi
"$@" sandbox kill "$id"
! "$@" sandbox list | grep "$id"
echo passed
