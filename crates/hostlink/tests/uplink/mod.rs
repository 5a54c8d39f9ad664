//! Receive queues of a veth, given to stations: frames come from its other end.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::Mac;
use hostlink::xdp::{Uplink, UplinkQueue, XdpError};
use ring::Memory;
use ring::xdp::{HEADROOM, PAGE};

use super::{ip, leave_host};

const PAGES: u32 = 16;
const STATION: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// A socket for whole frames on a device.
struct Wire(OwnedFd);

impl Wire {
    fn on(device: &str) -> Wire {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: plain system calls, with an address that lives through the call.
        unsafe {
            let fd = libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_NONBLOCK,
                protocol.into(),
            );
            assert!(fd >= 0);
            let name = std::ffi::CString::new(device).unwrap();
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let len = size_of::<libc::sockaddr_ll>() as u32;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
            Wire(OwnedFd::from_raw_fd(fd))
        }
    }

    fn send(&self, frame: &[u8]) {
        assert_eq!(
            rustix::net::send(&self.0, frame, rustix::net::SendFlags::empty()).unwrap(),
            frame.len()
        );
    }

    /// Payloads of the frames of our kind that came in.
    fn received(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut frame = [0; 4096];
        while let Ok((len, _)) =
            rustix::net::recv(&self.0, &mut frame, rustix::net::RecvFlags::empty())
        {
            if len > 14 && frame[12..14] == TYPE {
                all.push(frame[14]);
            }
        }
        all
    }
}

const TYPE: [u8; 2] = [0x88, 0xb5];

fn frame(to: Mac, what: u8, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &[2, 0, 0, 0, 0, 1], &TYPE].concat();
    frame.resize(14 + len, what);
    frame
}

/// A device with so many queues, and the wire that it is plugged into.
fn veth(queues: u32) -> Wire {
    leave_host();
    ip(&format!("link add up0 numrxqueues {queues} type veth peer name far0"));
    for device in ["up0", "far0"] {
        // No frames but the test's.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
        ip(&format!("link set {device} up"));
    }
    Wire::on("far0")
}

fn add_queue(uplink: &Uplink, mac: Mac) -> Result<(UplinkQueue, Arc<Memory>), XdpError> {
    let pages = Arc::new(Memory::anonymous((u64::from(PAGES) * PAGE) as usize).unwrap());
    Ok((uplink.add_queue(mac, Arc::clone(&pages), PAGES)?, pages))
}

fn post(queue: &mut UplinkQueue, pages: impl IntoIterator<Item = u64>) {
    pages.into_iter().for_each(|page| assert!(queue.receiver.fill.push(page * PAGE).unwrap()));
    queue.receiver.publish().unwrap();
}

#[track_caller]
fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
#[ignore = "needs root"]
fn a_stations_frames_come_into_its_pages_and_no_others() {
    let far = veth(1);
    let near = Wire::on("up0");
    let uplink = Uplink::open("up0").unwrap();
    let (mut queue, pages) = add_queue(&uplink, STATION).unwrap();
    assert_eq!(queue.name, "up0 queue 0, XDP in the driver");
    post(&mut queue, 0..8);
    far.send(&frame(Mac([0xff; 6]), 1, 50));
    far.send(&frame(STATION, 2, 50));
    far.send(&frame(Mac([2, 0, 0, 0, 0, 8]), 3, 50));
    far.send(&frame(STATION, 4, 1500));
    far.send(&frame(Mac([1, 0, 0x5e, 0, 0, 1]), 5, 50));
    wait(|| queue.receiver.frames.ready().unwrap() == 2);
    for (page, what, len) in [(0, 2, 50), (1, 4, 1500)] {
        let got = queue.receiver.frames.take().unwrap().unwrap();
        assert_eq!((got.addr, got.len), (page * PAGE + HEADROOM, 14 + len));
        let mut bytes = vec![0; got.len as usize];
        pages.read(got.addr, &mut bytes).unwrap();
        assert_eq!(bytes, frame(STATION, what, len as usize));
    }
    let mut passed = Vec::new();
    wait(|| {
        passed.extend(near.received());
        passed.len() == 3
    });
    assert_eq!(passed, [1, 3, 5]);
}

#[test]
#[ignore = "needs root"]
fn pages_come_back_in_the_order_in_which_they_were_posted() {
    let far = veth(1);
    let uplink = Uplink::open("up0").unwrap();
    let (mut queue, pages) = add_queue(&uplink, STATION).unwrap();
    let order = [5, 3, 15, 0, 9, 1];
    for round in 0..50u8 {
        post(&mut queue, order);
        order.iter().for_each(|_| far.send(&frame(STATION, round, 100)));
        wait(|| queue.receiver.frames.ready().unwrap() as usize == order.len());
        for page in order {
            let got = queue.receiver.frames.take().unwrap().unwrap();
            assert_eq!(got.addr, page * PAGE + HEADROOM);
            let mut what = [0];
            pages.read(got.addr + 14, &mut what).unwrap();
            assert_eq!(what, [round]);
        }
        queue.receiver.frames.release().unwrap();
    }
    let socket = queue.receiver.socket();
    assert_eq!(socket.upgrade().unwrap().losses().no_page, 0);
    far.send(&frame(STATION, 0, 100));
    wait(|| socket.upgrade().unwrap().losses().no_page == 1);
    drop(queue);
    assert!(socket.upgrade().is_none(), "asking keeps nothing open");
}

#[test]
#[ignore = "needs root"]
fn a_queue_is_one_stations_until_it_gives_it_back() {
    let far = veth(1);
    let uplink = Uplink::open("up0").unwrap();
    let (mut queue, pages) = add_queue(&uplink, STATION).unwrap();
    let refused = |mac: Mac| add_queue(&uplink, mac).map(drop).unwrap_err().to_string();
    let other = Mac([2, 0, 0, 0, 0, 8]);
    assert_eq!(refused(other), "up0 has 1 receive queue, and each is a guest's already");
    assert_eq!(refused(STATION), "up0: 02:00:00:00:00:09 has a queue already");
    assert_eq!(refused(Mac([0xff; 6])), "up0: ff:ff:ff:ff:ff:ff is no station's address");
    post(&mut queue, 0..8);
    drop(queue);
    let (mut queue, others) = add_queue(&uplink, other).unwrap();
    post(&mut queue, 0..8);
    far.send(&frame(STATION, 7, 50));
    far.send(&frame(other, 8, 50));
    wait(|| queue.receiver.frames.ready().unwrap() == 1);
    let mut bytes = [0; 64];
    pages.read(HEADROOM, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64], "written after it was given back");
    others.read(HEADROOM, &mut bytes).unwrap();
    assert_eq!(bytes[..], frame(other, 8, 50));
}

#[test]
#[ignore = "needs root"]
fn each_queue_has_a_station_of_its_own() {
    let _far = veth(2);
    let uplink = Uplink::open("up0").unwrap();
    let queues = [7, 8].map(|last| add_queue(&uplink, Mac([2, 0, 0, 0, 0, last])).unwrap().0);
    assert_eq!(
        queues.each_ref().map(|queue| queue.name.as_str()),
        ["up0 queue 0, XDP in the driver", "up0 queue 1, XDP in the driver"]
    );
    let refused = add_queue(&uplink, STATION).map(drop).unwrap_err().to_string();
    assert_eq!(refused, "up0 has 2 receive queues, and each is a guest's already");
}

fn has_program(device: &str) -> bool {
    let shown = std::process::Command::new("ip")
        .args(["-details", "link", "show", device])
        .output()
        .unwrap();
    String::from_utf8(shown.stdout).unwrap().contains("prog/xdp")
}

#[test]
#[ignore = "needs root"]
fn the_program_goes_with_the_uplink() {
    let _far = veth(1);
    let uplink = Uplink::open("up0").unwrap();
    assert!(has_program("up0"));
    let second = Uplink::open("up0").unwrap_err().to_string();
    assert!(
        second.starts_with("up0: attaching the program: ")
            && second.ends_with("; it has another XDP program"),
        "{second}"
    );
    drop(uplink);
    assert!(!has_program("up0"));
    ip("link add plain0 type bridge");
    let uplink = Uplink::open("plain0").unwrap();
    assert_eq!(add_queue(&uplink, STATION).unwrap().0.name, "plain0 queue 0, generic XDP");
    let none = Uplink::open("none0").unwrap_err().to_string();
    assert!(none.starts_with("none0: finding the device: "), "{none}");
    ip("link set far0 mtu 9000");
    let long = Uplink::open("up0").unwrap_err().to_string();
    assert!(long.contains("too large for XDP"), "{long}");
}
