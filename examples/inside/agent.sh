# An agent inside its sandbox: aio is on the PATH, and the sandbox needs no credentials.
set -euo pipefail
mkdir -p project
aio file write --file project/notes.md --content $'# Tasks\n- [ ] write the guide\n- [x] buy milk\n- [ ] call Ann\n' >/dev/null
open=$(aio file grep --path project --pattern '\[ \]' --jq '.matches | length')
aio code execute --language python --code "print('found', $open, 'open tasks')" --jq '.. | .text? // empty' | head -n 1
