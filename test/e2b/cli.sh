# Uses the public command line as it is: list, exec with pipes, kill. Further arguments are older
# releases.
set -eu
e2b=$1
python=$2
shift 2
id=$("$python" -c "from e2b import Sandbox; print(Sandbox.create(timeout=300, metadata={'by': 'cli'}).sandbox_id)")
"$e2b" sandbox list | grep "$id"
test "$(echo piped | "$e2b" sandbox exec "$id" cat)" = piped
test "$("$e2b" sandbox exec "$id" -- sh -c 'echo $((6*7))')" = 42
code=0
"$e2b" sandbox exec "$id" -- sh -c 'exit 5' || code=$?
test "$code" = 5
for old in "$@"; do
  test "$(echo piped | node "$old" sandbox exec "$id" cat)" = piped
done
"$e2b" template list | grep base
"$e2b" sandbox kill "$id"
! "$e2b" sandbox list | grep "$id"
echo passed
