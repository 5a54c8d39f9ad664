#!/bin/sh
# What dom0 boots first: finds its disk and goes on there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
# One that finds nothing to drive here, such as a processor's own checksums, is no loss.
while read -r module; do $b insmod "/modules/$module" 2>/dev/null; done </modules/order
until [ -b /dev/vda ]; do $b usleep 50000; done
$b mount -t ext4 -o noatime /dev/vda /new || { echo "dom0's disk cannot be mounted" && $b poweroff -f; }
$b umount /sys
$b umount /proc
$b mount --move /dev /new/dev
exec $b switch_root /new /sbin/init
