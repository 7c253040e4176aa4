#!/bin/busybox sh
# The first process of a VM: makes a system, runs every test program, tells how each ended, and switches off.
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=90% tmp /tmp
mount -t securityfs security /sys/kernel/security
mount -t tracefs tracing /sys/kernel/tracing
mount -t cgroup2 cgroup /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
while read -r module; do
    insmod "/modules/$module.ko" || echo "module $module was refused"
done < /modules/order

# The second serial line is for the tests alone; the kernel speaks on the first.
exec < /dev/null > /dev/ttyS1 2>&1
export CHECKPOINT_GUARD=/usr/bin/checkpoint-guard CHECKPOINT_GUARD_VM="$(uname -r)"
seconds() { cut -d. -f1 /proc/uptime; }
echo "VM kernel $(uname -r)"
for program in /tests/*; do
    echo "VM begin ${program#/tests/}"
    began=$(seconds)
    "$program" --test-threads=1 --show-output $(cat /filter)
    echo "VM end ${program#/tests/} $?"
    echo "VM took $(($(seconds) - began)) s ${program#/tests/}"
done
echo "VM done"
poweroff -f
