#!/bin/sh
# The first and only process of a stock guest on Xen: loads the frontends, then starts the agent that it is driven by, over
# its console.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /root && mount -t devpts pts /dev/pts && mount -t tmpfs tmp /tmp
read -r arguments </proc/cmdline
for argument in $arguments; do
  case $argument in
    max_queues=*) frontend=$argument ;;
  esac
done
# $frontend is empty or one word, which every frontend knows.
while read -r module; do
  insmod "/modules/$module" $frontend || echo "insmod $module failed"
done </modules/order
ip link set lo up

# The console is a channel from here on: nothing else may come between its lines.
dmesg -n 1
port=/dev/hvc0
stty -F $port raw -echo
agent=/agent
. /agent.sh
