//! Requests and responses that are refused.

use super::*;

/// Connects a station after `spoil` has changed it, and returns why it was stopped.
fn stopped(spoil: impl FnOnce(&mut Station, u64, u64)) -> String {
    let (host, nic) = host();
    let mut a = Station::attached(&host, 1);
    a.request_device_queue();
    let ring = a.staging.as_ref().unwrap().ring().page().addr(0);
    spoil(&mut a, ring, ring + PAGE as u64);
    a.connect();
    wait(|| vif(&host, 1).violations > 0);
    let status = vif(&host, 1);
    assert_eq!(status.condition, Condition::Stopped);
    wait(|| nic.given.lock().is_none() && a.guest.mapped() == 0);
    status.reason.unwrap()
}

/// Where request number `n` is in its page.
fn slot(n: u64) -> u64 {
    64 + 8 * n
}

fn write(station: &Station, at: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    station.guest.memory().write(at, &bytes).unwrap();
}

fn reference(station: &Station, n: u32) -> u32 {
    station.staging.as_ref().unwrap().pages().reference(n).0
}

#[test]
fn requests_name_pages_of_the_list_once() {
    let why = "queue 2: a request for the device queue names none of its pages, or one that is posted already";
    // The same page twice.
    assert_eq!(stopped(|a, ring, _| write(a, ring + slot(7), &[6, reference(a, 6)])), why);
    // A number and a grant that do not belong together.
    assert_eq!(stopped(|a, ring, _| write(a, ring + slot(7), &[7, reference(a, 6)])), why);
    // No page of the list.
    assert_eq!(stopped(|a, ring, _| write(a, ring + slot(0), &[256, reference(a, 0)])), why);
    assert_eq!(stopped(|a, ring, _| write(a, ring + slot(255), &[255, 1_000_000])), why);
}

#[test]
fn pages_of_the_list_are_granted_for_writing() {
    let all = "domain 1 has not granted all of the 256 pages asked for to us for writing";
    // Granted by nobody.
    assert_eq!(stopped(|a, _, list| write(a, list + 4 * 9, &[16_000])), all);
    // For reading only: the list itself.
    assert_eq!(stopped(|a, _, list| write(a, list + 4 * 9, &[reference(a, 0) - 1])), all);
}

#[test]
fn invalid_keys_are_refused() {
    let put = |key: &'static str, value: u32| {
        move |a: &mut Station, _, _| {
            a.guest
                .store()
                .nodes()
                .put(&format!("device/vif/0/device-queue/{key}"), value)
                .unwrap();
        }
    };
    for pages in [0, 257, u32::MAX] {
        let why = stopped(put("pages", pages));
        assert!(
            why.ends_with(&format!("pages: \"{pages}\" is not a number from 1 to 256")),
            "{why}"
        );
    }
    assert_eq!(
        stopped(put("pages-ref", 16_000)),
        "domain 1 has not granted page 16000 to us for writing"
    );
    assert_eq!(
        stopped(put("rx-ring-ref", 16_000)),
        "domain 1 has not granted page 16000 to us for writing"
    );
    let why = stopped(put("event-channel", 9_999));
    assert!(why.contains("event channel 9999"), "{why}");
    let remove = |a: &mut Station, _, _| {
        a.guest.store().nodes().remove("device/vif/0/device-queue/pages").unwrap()
    };
    let why = stopped(remove);
    assert!(why.ends_with("device-queue/pages is missing"), "{why}");
    // An index far ahead of what the ring can hold.
    let why = stopped(|a, ring, _| write(a, ring, &[100_000]));
    assert!(why.contains("100000"), "{why}");
}

#[test]
fn the_frontend_detects_invalid_responses() {
    let answer = |words: [u32; 2]| {
        let (host, _nic) = host();
        let mut a = Station::connected(&host, 1);
        let ring = a.staging.as_ref().unwrap().ring().page().addr(0);
        write(&a, ring + slot(0), &words);
        write(&a, ring + 8, &[1]);
        a.staging.as_mut().unwrap().next(&mut Frame::default()).unwrap_err().to_string()
    };
    assert_eq!(answer([256, 60 << 16]), "the backend used a page that it does not have");
    assert_eq!(answer([5 | 256 << 16, 3841 << 16]), "the backend wrote beyond a page");
}
