python=$2 program=$3 kernel=$4 # the interpreter of the kernel, and its two files
{ command -v javac && command -v jshell; } >/dev/null || debian default-jdk-headless

step "compiling the kernel"
data=${JUPYTER_DATA_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/jupyter}
mkdir -p "$data/kernels"
new=$(mktemp -d "$data/.java.XXXXXX")
trap 'rm -rf "$new"' EXIT
printf '%s' "$program" >"$new/Cells.java"
printf '%s' "$kernel" >"$new/java_kernel.py"
javac -proc:none -encoding UTF-8 -d "$new" "$new/Cells.java" 2>"$new/log" || fail "$(cat "$new/log")"
rm "$new/Cells.java" "$new/log"
version=$(javac -version)
printf '{"argv": ["%s", "{resource_dir}/java_kernel.py", "-f", "{connection_file}"], %s, "metadata": {"version": "%s"}}\n' \
  "$python" '"display_name": "Java", "language": "java"' "${version#javac }" >"$new/kernel.json"
rm -rf "$data/kernels/java"
mv -T "$new" "$data/kernels/java"
trap - EXIT
