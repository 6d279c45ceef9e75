# Startup file of a session's shell: the user's startup file, then hooks that report the
# start and end of commands. @words@ are replaced for each shell.
#
# A hook prints an invisible sequence, ESC ] 5379 ; kind ; key ; … BEL:
#   L  the API command was read from its file   S  a typed line starts
#   R  the API command starts                   E  the API command has ended: exit code, directory
#   P  at the prompt: exit code, 1 if the last API command started, directory
#   B  the prompt was shown: exit code, jobs, 1 unless a command prints it
#   2  the shell waits for more lines
# The key changes with every API command, so that output of a program, even a copy of an
# earlier sequence, cannot pretend to be a hook. A sequence may get lost: after "stty sane"
# Ctrl-C makes the kernel drop unread output.
__cove() {
	local __cove_o=$- __cove_s=$? IFS= -
	builtin set +aefkuvxC
	local __cove_m= dir=$PWD
	[[ $dir != *[[:cntrl:]]* ]] || dir=
	case $1 in
	l)	# A key of the line editor: insert a line that runs the command.
		if { builtin read -rd '' __cove_n && builtin read -rd '' __cove_d && builtin read -rd '' __cove_f &&
			builtin read -rd '' __cove_c; } 2>/dev/null <@file@; then
			__cove_m=L\;$__cove_n __cove_r=0
			# After an incomplete typed command it must be a syntax error. $? keeps the exit code
			# of the last command, and neither errexit nor an ERR trap may treat the hooks or
			# eval as a failed command.
			local join='||' not='! '
			((__cove_s)) || join='&&'
			[[ $__cove_o != *e* ]] || not=
			READLINE_LINE=" \\__cove s 2>/dev/null $join $not\\eval \"\$__cove_c\"; { \\__cove e \"\${PIPESTATUS[0]}\" && \\:; } 2>/dev/null"
		else
			READLINE_LINE=
		fi
		__cove_s=0 ;;
	s)	# A command runs at most once, even if its line is part of a typed loop or was revoked:
		# the second run finds the mark.
		builtin set -C
		if ! { builtin true >@file@."$__cove_n"; } 2>/dev/null && [[ -e @file@.$__cove_n ]]; then
			__cove_c=:
			return "$__cove_s"
		fi
		if [[ -o history ]]; then # instead of the inserted line
			if ((${#__cove_c} < 16384)); then
				builtin history -s -- "$__cove_c"
			else
				builtin history -s -- "# a command of ${#__cove_c} characters"
			fi
		fi
		[[ $__cove_f != *sane* ]] || command stty sane iutf8 noflsh </dev/tty
		if [[ $__cove_d ]]; then
			local how=-P
			[[ $__cove_f != *logical* ]] || how=-L
			if ! builtin cd $how -- "$__cove_d" && [[ $__cove_f == *strict* ]]; then __cove_c="builtin cd $how -- \"\$__cove_d\""; fi
		fi
		# A trace starts with the eval, which is not part of the command.
		[[ $__cove_o != *x* ]] || __cove_c=$'{ \\__cove t && \\:; } 2>/dev/null\n'$__cove_c
		__cove_b=0 __cove_r=1
		builtin export -n __cove_{n,d,f,c,b,r} # after set -a
		__cove_m=R\;$__cove_n ;;
	t)	__cove_m=R\;$__cove_n ;;
	e)	builtin eval : # resets the parser after text that ended inside quotes
		__cove_s=$2
		__cove_m=E\;$__cove_n\;$__cove_s\;$dir ;;
	p)	__cove_m=P\;$__cove_n\;$__cove_s\;$__cove_r\;$dir
		__cove_b=1 __cove_s=0 ;;
	esac
	if [[ $__cove_m ]]; then
		builtin printf '\e]5379;%s\a' "$__cove_m" 2>/dev/null >/dev/tty || builtin printf '\e]5379;%s\a' "$__cove_m"
	fi
	# Add the hooks again to variables that the user has changed.
	if [[ $1 != [st] ]]; then
		local run='{ \__cove p; } 2>/dev/null' more='\[\e]5379;2;${__cove_n-}\a\]'
		local shown='\[\e]5379;B;${__cove_n-};$?;\j;${__cove_b-}\a\]' begin='\e]5379;S;${__cove_n-};$((__cove_b=0))\a'
		if [[ ${PROMPT_COMMAND[*]-} != *"$run"* ]]; then
			if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 501)); then
				builtin printf -v PROMPT_COMMAND %s "$run;${PROMPT_COMMAND-}"
			else
				builtin printf -v 'PROMPT_COMMAND[99]' %s "$run"
			fi
		fi
		[[ ${PS1-} == *"$shown" ]] || builtin printf -v PS1 %s "${PS1//"$shown"/}$shown"
		[[ ${PS2-} == *"$more" ]] || builtin printf -v PS2 %s "${PS2//"$more"/}$more"
		[[ ${PS0-} == *"$begin" ]] || builtin printf -v PS0 %s "${PS0//"$begin"/}$begin"
	fi 2>/dev/null
	return "$__cove_s"
}
readonly -f __cove
__cove_n=@key@ __cove_b=0 __cove_r=0
@user@
for __cove_m in emacs-standard vi-insert vi-command; do
	builtin bind -m "$__cove_m" -x '"\e[7002~": __cove l'
	builtin bind -m "$__cove_m" '"\e[7003~": accept-line'
	builtin bind -m "$__cove_m" '"\e[7001~": "\e[7002~\e[7003~"'
done 2>/dev/null
unset __cove_m
__cove i
