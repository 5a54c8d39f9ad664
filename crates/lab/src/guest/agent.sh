#!/bin/sh
# Runs what the host sends over the channel $port: sourced at the end of the first process of a lab guest.
#
# From the host, one line each:   <boot> run <id> <command>     <boot> stop <id>
# To the host, one line each:     hello <boot>     done <boot> <id> <exit code> <base64 of the output>
# A command is written for printf %b: every character that is no letter or digit is \0 and octal
# digits. Programs are costly to start on an emulated processor, so the shell does what it can itself.
# What waits here waits with usleep: a sleep that is seen is a job's.
# <boot> names this boot, so that nothing said before a reset is taken for something said after it.
boot=$(cat /proc/sys/kernel/random/boot_id)
exec 3<>"$port"
printf '\nhello %s\n' "$boot" >&3

run() {
  printf %b "$2" >"/tmp/run.$1"
  setsid sh "/tmp/run.$1" >"/tmp/out.$1" 2>&1 </dev/null 3>&- &
  pid=$!
  echo $pid >"/tmp/pid.$1"
  wait $pid
  code=$?
  # Whoever stopped it may count on all of it being gone: a port that it listened on, for one.
  [ ! -e "/tmp/stop.$1" ] || while kill -0 "-$pid"; do usleep 10000; done 2>/dev/null
  # One answer at a time, as a long one takes several writes. Without overwriting (-C), only one
  # process can create the file.
  set -C
  until true >/tmp/answering; do usleep 10000; done 2>/dev/null
  set +C
  {
    printf 'done %s %s %s ' "$boot" "$1" "$code"
    [ ! -s "/tmp/out.$1" ] || tail -c 1000000 "/tmp/out.$1" | base64 -w 0
    echo
  } >&3
  rm -f /tmp/answering "/tmp/run.$1" "/tmp/out.$1" "/tmp/pid.$1" "/tmp/stop.$1"
}

# Again and again, because the job may be so new that it has no process group yet.
stop() {
  [ -e "/tmp/pid.$1" ] && : >"/tmp/stop.$1"
  while [ -e "/tmp/pid.$1" ]; do
    pid=$(cat "/tmp/pid.$1") && [ -n "$pid" ] && kill -9 "-$pid"
    usleep 50000
  done 2>/dev/null
}

# What runs is a child of the first process: the end of a child of its own would interrupt read, which
# forgets what it has read of a line by then. A long line comes in pieces.
agent() {
  while read -r whose verb id text <&3; do
    [ "$whose" = "$boot" ] || continue
    case $verb in
      run)
        : >"/tmp/pid.$id"
        (run "$id" "$text" &)
        ;;
      stop) (stop "$id" &) ;;
    esac
  done
}

# Orphans come to this process when they end, and wait buries them. The kernel panics when this process
# ends, so it goes on waiting, and starts what reads again if that should end. The kernel may know why.
while :; do
  agent &
  reader=$!
  while kill -0 "$reader" 2>/dev/null; do
    wait
    usleep 100000
  done
  { echo 'the agent ended'; dmesg | tail -n 5; } >&3
done
