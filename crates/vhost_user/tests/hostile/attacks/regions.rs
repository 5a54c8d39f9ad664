//! Regions, sizes and places that are invalid.

use super::*;

/// Adds one region.
fn add(hostile: &HostileFrontEnd, region: Vec<u8>, fd: &OwnedFd) {
    hostile.say(code::ADD_MEM_REG, &[longs(&[0]), region].concat(), &[fd.as_fd()]);
}

pub fn lies() -> Vec<Attack> {
    vec![
        fresh(
            "a region longer than its file",
            Stops("needs a file of 8392704 bytes"),
            |hostile, _| {
                add(hostile, region(0, MEMORY + 4096, 0, 0), &memory(MEMORY));
            },
        ),
        fresh("a region behind its file", Stops("needs a file of"), |hostile, _| {
            add(hostile, region(0, 4096, 0, 1 << 62), &memory(MEMORY));
        }),
        fresh("a region of no bytes", Stops("is empty"), |hostile, _| {
            add(hostile, region(0, 0, 0, 0), &memory(4096))
        }),
        fresh("a region around the end", Stops("wraps around"), |hostile, _| {
            add(hostile, region(u64::MAX - 4095, 8192, 0, 0), &memory(8192));
        }),
        fresh("a region around the end of its file", Stops("wraps around"), |hostile, _| {
            add(hostile, region(0, 8192, 0, u64::MAX - 4095), &memory(8192));
        }),
        fresh("regions that overlap", Stops("overlap"), |hostile, _| {
            hostile.share();
            add(hostile, region(GUEST + MEMORY - 1, 4096, USER + MEMORY, 0), &memory(4096));
        }),
        fresh("regions that the front-end says overlap", Stops("overlap"), |hostile, _| {
            hostile.share();
            add(hostile, region(GUEST + MEMORY, 4096, USER, 0), &memory(4096));
        }),
        fresh(
            "all addresses that there are",
            Stops("0x100000000000 bytes in all"),
            |hostile, _| {
                add(hostile, region(0, 1 << 44, 0, 0), &memory(1 << 62));
            },
        ),
        fresh("33 regions", Stops("ADD_MEM_REG beyond 32"), |hostile, _| {
            for i in 0..33 {
                add(hostile, region(i << 20, 4096, i << 20, 0), &memory(4096));
            }
        }),
        fresh("a table of no regions", Stops("SET_MEM_TABLE with 0 regions"), |hostile, _| {
            hostile.say(code::SET_MEM_TABLE, &longs(&[0]), &[]);
        }),
        fresh(
            "a table shorter than it says",
            Stops("SET_MEM_TABLE with a payload of 40"),
            |hostile, _| {
                hostile.say(
                    code::SET_MEM_TABLE,
                    &[words(&[2, 0]), region(0, 4096, 0, 0)].concat(),
                    &[],
                );
            },
        ),
        fresh("a region to remove that is not there", GoesOn, |hostile, _| {
            hostile.share();
            hostile.say(
                code::REM_MEM_REG,
                &[longs(&[0]), region(0, SECOND, USER, 0)].concat(),
                &[],
            );
        }),
        fresh("memory that is a device", Stops("is in no memory file"), |hostile, _| {
            add(
                hostile,
                region(0, 4096, 0, 0),
                &open("/dev/zero", OFlags::RDWR, Mode::empty()).unwrap(),
            );
        }),
        fresh("memory that is a socket", Stops("is in no memory file"), |hostile, _| {
            add(hostile, region(0, 4096, 0, 0), &hostile.stream.try_clone().unwrap().into());
        }),
        fresh(
            "memory that is a file on a disk, or wherever",
            Stops("is in no memory file"),
            |hostile, _| {
                add(
                    hostile,
                    region(0, 4096, 0, 0),
                    &open("/proc/self/exe", OFlags::RDONLY, Mode::empty()).unwrap(),
                );
            },
        ),
        fresh("memory that cannot be written", Stops("mapping memory"), |hostile, _| {
            let fd = memory(4096);
            fcntl_add_seals(&fd, SealFlags::WRITE).unwrap();
            add(hostile, region(0, 4096, 0, 0), &fd);
        }),
        fresh("a region that begins within a page", GoesOn, |hostile, _| {
            add(hostile, region(77, 4096, 99, 1001), &memory(8192));
        }),
    ]
}
