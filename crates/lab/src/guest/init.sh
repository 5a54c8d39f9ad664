#!/bin/sh
# The first and only process of a lab guest: loads the drivers, then starts the agent that the host drives it by.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /root && mount -t devpts pts /dev/pts && mount -t tmpfs tmp /tmp
while read -r module; do
  insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order
ip link set lo up

until port=$(ls /dev/vport*p1 2>/dev/null); do usleep 100000; done
agent=/agent
. /agent.sh
