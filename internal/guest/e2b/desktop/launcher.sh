#!/bin/sh
# Commands that E2B's desktop clients run, on the sandbox's own display.
name=${0##*/}
own() { exec SELF "$@"; }
case $name in
startxfce4)
	# Clients wait for processes with these names.
	(own xfwm4) &
	(own xfdesktop) &
	own xfce4-session
	;;
x11vnc)
	case " $* " in
	*" -bg "*)
		# The server prints its port when it listens, and continues in the background.
		line=$( (setsid SELF x11vnc "$@" &) | head -n 1)
		[ -n "$line" ] || exit 1
		echo "$line"
		exit
		;;
	esac
	own x11vnc "$@"
	;;
gtk-launch)
	[ $# -gt 0 ] || { echo "usage: gtk-launch APPLICATION [URI...]" >&2; exit 1; }
	application=${1%.desktop}
	shift
	find_entry() {
		for dir in "${XDG_DATA_HOME:-$HOME/.local/share}" /usr/local/share /usr/share; do
			[ -f "$dir/applications/$1.desktop" ] && entry=$dir/applications/$1.desktop && return
		done
		return 1
	}
	# E2B's image contains Chrome, this one Chromium.
	find_entry "$application" || { [ "$application" = google-chrome ] && find_entry chromium; } ||
		{ echo "gtk-launch: no such application: $application" >&2; exit 1; }
	line=$(sed -n '/^\[Desktop Entry\]/,/^\[/s/^Exec=//p' "$entry" | head -n 1 | sed 's/ *%[a-zA-Z]//g')
	eval "exec $line \"\$@\""
	;;
*)
	own "$name" "$@"
	;;
esac
