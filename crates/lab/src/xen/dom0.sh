#!/bin/sh
# dom0's first process: makes it a Xen host, with the toolstack's daemons, then starts the agent that it is driven by.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/xen-4.17/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm && mount -t devpts pts /dev/pts
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /run/lock /run/xen /run/xenstored /run/ringmain
for module in xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xenfs virtio_console 9p 9pnet_virtio tun; do
  modprobe "$module" || echo "modprobe $module failed"
done
mount -t xenfs xenfs /proc/xen
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share
ip link set lo up
hostname dom0

# The host shows the agent's program. Guests find it in a further archive behind their own.
agent=/run/agent
cp /share/agent "$agent"
(cd /run && echo agent | busybox cpio -o -H newc 2>/dev/null | busybox gzip -1) >>/guest/guest.cpio.gz

xenstored --pid-file=/run/xenstored.pid
until xenstore-read / >/dev/null 2>&1; do usleep 50000; done
xen-init-dom0
xenconsoled --pid-file=/run/xenconsoled.pid

until port=$(ls /dev/vport*p1 2>/dev/null); do usleep 100000; done
. /sbin/agent.sh
