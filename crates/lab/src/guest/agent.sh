#!/bin/sh
# Has the program $agent run what the host sends over the channel $port: sourced at the end of the
# first process of a lab guest. The program describes the channel.

exec 3<>"$port"

# The program goes on after an end that nobody asked for. The kernel may know the reason.
serve() {
  "$agent" hello <&3 >&3 3>&-
  while :; do
    { echo 'the agent ended'; dmesg | tail -n 5; } >&3
    usleep 100000
    "$agent" <&3 >&3 3>&-
  done
}

# Orphans come to this process when they end, and wait buries them. The kernel panics when this
# process ends.
serve &
while :; do
  wait
  usleep 100000
done
